"""Drives every way in which something is refused or fails, with texts and keys to be looked for."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

import orjson
import psycopg

from libs import ids
from libs.door import DOOR_KEY_ID_HEADER, DOOR_MAC_HEADER
from libs.kafka.loop import BUG
from schemas.envelope import Data, encode
from schemas.generations import GenerationFailedV1
from schemas.registry import CONTEXT_EVENTS, GENERATION_EVENTS, TURN_EVENTS, TURN_REQUESTS
from schemas.steps import StepPlannedV1
from schemas.turns import TurnEndedV1, TurnStartedV1
from tests.rig.broken_turns import invariant, poison_record
from tests.rig.client import Client
from tests.rig.front_end import FrontEnd, Headers, make_door_key
from tests.rig.house import House
from tests.rig.ledger import Post
from tests.rig.provider import Rule
from tests.rig.waiting import until

NOT_DRIVEN: Mapping[str, str] = MappingProxyType(
    {
        "idempotency-in-progress": "nobody tells it: a repeat waits for the first one's outcome",
        "provider-failed": "nobody tells it: a turn's stream says how it ended",
        "provider-timeout": "nobody tells it: a turn's stream says how it ended",
        "admission-rejected": "one fixed sentence while a process stops",
        "dependency-unavailable": "fixed sentences while a part is away, after ten seconds",
        "quota-exceeded": "fixed sentences with a number, after 32 turns or 500 streams",
        "restore-expired": "one fixed sentence, after 30 days",
    }
)
"""Problems that are not met here, and why not; none of their sentences quotes anything."""

READERS: Mapping[str, str] = MappingProxyType(
    {
        TURN_REQUESTS: "ingestion",
        TURN_EVENTS: "context_assembly",
        CONTEXT_EVENTS: "llm_gateway",
        GENERATION_EVENTS: "ingestion",
    }
)
"""Whose dead letter a record of each topic becomes."""

QUOTING = """
create function ingestion.no_canary() returns trigger language plpgsql as $$
begin
  if new.title = '%s' then
    raise exception 'a conversation may not be called %%', new.title;
  end if;
  return new;
end $$;
create trigger no_canary before insert on ingestion.conversations
  for each row execute function ingestion.no_canary()
"""
"""Has the database refuse a row and quote it; of a constraint it would not, by row security."""

QUOTING_NO_MORE = "drop function ingestion.no_canary() cascade"

FOR_EVER = 2_400
"""Words of an answer that outlasts the test unless it is stopped, at 50 ms each."""


@dataclass(frozen=True, slots=True)
class Canaries:
    """Texts and keys that must be found nowhere but where they belong."""

    mark: str = field(default_factory=lambda: uuid4().hex[:12])

    @property
    def text(self) -> str:
        """What somebody says, calls a thing, or answers."""
        return f"canary-text-{self.mark}"

    @property
    def key(self) -> str:
        """A secret, or what a client chose as a key."""
        return f"tw_canarykey{self.mark}"

    @property
    def header(self) -> str:
        """The value of a header, of a request or a record."""
        return f"canary-header-{self.mark}"

    @property
    def path(self) -> str:
        """A part of an address."""
        return f"canary-path-{self.mark}"


_CANARY = re.compile(rb".{0,80}canary-?(?:text|key|header|path|[0-9a-f]{16}).{0,40}")
"""With what stands around it; the last form is what the rig's clients put into every message."""


def canaries_in(told: bytes) -> list[bytes]:
    """Where one of them stands in what somebody was told."""
    return _CANARY.findall(told)[:5]


def new_key() -> dict[str, str]:
    """A header with a key that nobody used."""
    return {"Idempotency-Key": uuid4().hex}


@dataclass(frozen=True, slots=True)
class Scene:
    """What wrong requests are about.

    Attributes:
        first: A turn that has ended.
        running: A turn that is being answered; another one waits behind it.
        waiting: That one.
        gone: A turn whose answer was deleted.
        admin: Headers of an operator of the same tenant.
    """

    canaries: Canaries
    first: Post
    running: Post
    waiting: Post
    gone: Post
    admin: Mapping[str, str]


async def set_scene(house: House, client: Client, canaries: Canaries) -> Scene:
    """Have something to be wrong about."""
    marker = f"goes-on-{canaries.mark}"
    house.provider.script(Rule(match=marker, deltas=("on ",) * FOR_EVER, delay_ms=50))
    first, gone = [
        client.note(await client.conversation(), canaries.text, key=canaries.key + name)
        for name in ("-first", "-gone")
    ]
    busy = await client.conversation()
    running, waiting = (client.note(busy, f"{marker} {canaries.text}") for _ in range(2))
    for post in (first, gone, running, waiting):
        await client.send(post)
    await client.follow(first)
    await client.follow(gone)
    assert gone.turn_id is not None
    await client.delete_message(gone.conversation_id, ids.message_id(gone.turn_id, "assistant"))
    key = await house.make_key("canaries", "operator", scopes=("chat", "read", "admin"))
    admin = {"Authorization": f"Bearer {key.key}"}
    return Scene(canaries, first, running, waiting, gone, admin)


Wrong = tuple[str, str, dict[str, Any]]
"""Method, path, and what is sent."""


def _wrong_messages(scene: Scene) -> dict[str, Wrong]:
    """Messages that are not taken, by the problem that each is told."""
    text, key, header = scene.canaries.text, scene.canaries.key, scene.canaries.header
    messages = f"/v1/conversations/{scene.first.conversation_id}/messages"
    busy = f"/v1/conversations/{scene.running.conversation_id}/messages"
    said: dict[str, Any] = {"json": {"content": text}}

    def post(path: str, body: Any, **headers: str) -> Wrong:
        return ("POST", path, {"json": body, "headers": {**new_key(), **headers}})

    return {
        "unauthenticated": post(messages, {"content": text}, Authorization=f"Bearer {key}"),
        "idempotency-key-missing": ("POST", messages, said),
        "idempotency-key-invalid": post(
            messages, {"content": text}, **{"Idempotency-Key": f"{key} \u00e9"}
        ),
        "idempotency-key-reused": post(
            messages, {"content": text + "!"}, **{"Idempotency-Key": scene.first.key}
        ),
        "validation-error": post(messages, {"content": [text]}),
        "payload-too-large": post(messages, {"content": text * 40_000}),
        "unsupported-media": post(
            messages, {"content": text}, **{"Content-Type": f"text/{header}"}
        ),
        "misdirected-request": post(messages, {"content": text}, Host=f"{header}.example"),
        "stale-parent": post(messages, {"content": text, "parent": str(uuid4())}),
        "turn-in-progress": post(busy, {"content": text, "policy": "reject"}),
    }


def wrong_requests(scene: Scene) -> dict[str, Wrong]:
    """Requests with a canary in each, by the problem that each is told."""
    text, path = scene.canaries.text, scene.canaries.path
    talk = f"/v1/conversations/{scene.first.conversation_id}"
    turn = f"/v1/turns/{scene.first.turn_id}"
    assert scene.first.turn_id is not None
    answer = ids.message_id(scene.first.turn_id, "assistant")
    change = {"json": {"content": text}, "headers": new_key()}
    operate, named = {"headers": dict(scene.admin)}, {"headers": {"User-Agent": text}}
    long_text = " ".join(f"{text}{n}" for n in range(4_000))
    return {
        **_wrong_messages(scene),
        "forbidden": ("PUT", "/v1/instructions", {"json": {"workspace": text}}),
        "context-too-large": (
            "PUT", "/v1/instructions", {"json": {"workspace": long_text}, **operate}
        ),
        "not-found": ("GET", f"/v1/turns/{path}", {}),
        "method-not-allowed": ("PUT", f"/v1/turns/{path}", {"json": {"content": text}}),
        "turn-already-terminal": ("POST", f"{turn}/cancel", {"headers": {"Referer": text}}),
        "not-editable": ("PATCH", f"{talk}/messages/{answer}", change),
        "not-continuable": ("POST", f"{turn}/continue", {"json": {}, "headers": new_key()}),
        "cursor-invalid": ("GET", f"/v1/conversations?after={text}", {}),
        "stream-expired": ("GET", f"/v1/turns/{scene.gone.turn_id}/events", named),
        "not-possible": (
            "POST",
            f"/v1/ops/turns/{scene.waiting.turn_id}/reap",
            {"json": {"dry_run": False}, **operate},
        ),
        "internal-error": ("GET", f"{turn}/plan", named),
    }  # fmt: skip


async def ask_wrongly(house: House, client: Client, scene: Scene) -> dict[str, bytes]:
    """Make all wrong requests; what each was told, by the problem's name."""
    told: dict[str, bytes] = {}
    for method, path, given in wrong_requests(scene).values():
        is_plan = path.endswith("/plan")
        async with _without_rights(house) if is_plan else _nothing():
            reply = await client.request(method, path, **given)
        # A problem names the path that was asked for, to the one who asked.
        told[str(reply.body.get("code"))] = orjson.dumps({**reply.body, "instance": None})
    return told


async def wrong_answers(house: House, client: Client, canaries: Canaries) -> None:
    """Every way in which the provider fails, repeating what it was asked and a key."""
    says = {"message": f"{canaries.text} {canaries.key}", "type": canaries.text, "code": None}
    broken = f"data: {{{canaries.text}\n\n".encode()
    shown = (canaries.text, "more")
    rules: dict[str, dict[str, Any]] = {
        "refused": {"status": 400, "error": says},
        "unauthorized": {"status": 401, "error": says, "headers": {"x-note": canaries.header}},
        "down": {"status": 503, "error": says},
        "throttled": {"status": 429, "error": says, "headers": {"Retry-After": "0"}},
        "malformed": {"raw_body_b64": base64.b64encode(broken).decode()},
        "cut": {"deltas": shown, "cut_after": 1},
        "told": {"deltas": shown, "error_after": 1},
        "too-long": {"deltas": shown, "finish_reason": "length"},
        "filtered": {"deltas": shown, "finish_reason": "content_filter"},
        "unknown": {"deltas": shown, "finish_reason": canaries.text},
    }
    texts = [" ".join(f"{canaries.text}{n}" for n in range(9_000))]
    for name, rule in rules.items():
        marker = f"{name}-{canaries.mark}"
        house.provider.script(Rule(match=marker, **rule))
        texts.append(f"{marker} {canaries.text}")

    async def say(text: str) -> None:
        await client.say(await client.conversation(), text)

    await asyncio.gather(*(say(text) for text in texts))


async def stop_running(client: Client, scene: Scene) -> None:
    """Cancel what the scene left running, and read both ends."""
    for post in (scene.waiting, scene.running):
        await client.request("POST", f"/v1/turns/{post.turn_id}/cancel")
        await client.follow(post)


@dataclass(frozen=True, slots=True)
class _Spoiled:
    """A record that will be parked.

    Attributes:
        key: None where it is the conversation's.
    """

    topic: str
    value: bytes
    headers: Headers
    key: bytes | None = None


def _spoiled(front: FrontEnd, canaries: Canaries) -> dict[str, _Spoiled]:
    """Records with canaries in value, key and headers, by why each is parked."""
    text, note = canaries.text.encode(), (canaries.header, canaries.header.encode())
    event = front.create(uuid4(), canaries.key)
    value = encode(event)
    foreign = front.event(uuid4(), uuid4(), TurnEndedV1(status="failed", reason="x", length=0))
    failed = GenerationFailedV1(step_id=uuid4(), attempt=1, reason=canaries.text)

    def changed(**changes: Any) -> _Spoiled:
        other = orjson.dumps({**orjson.loads(value), **changes})
        return _Spoiled(TURN_REQUESTS, other, [*front.key.sign(other), note])

    def signed_as(key_id: str, mac: str) -> _Spoiled:
        marks = [(DOOR_KEY_ID_HEADER, key_id.encode()), (DOOR_MAC_HEADER, mac.encode())]
        return _Spoiled(TURN_REQUESTS, value, [*marks, note])

    def inner(topic: str, data: Data) -> _Spoiled:
        return _Spoiled(topic, encode(front.event(uuid4(), uuid4(), data)), [note])

    return {
        "door_unsigned": _Spoiled(TURN_REQUESTS, value, [note]),
        "door_key_unknown": signed_as(str(uuid4()), "0" * 64),
        "door_mac_wrong": signed_as(str(front.key.id), "0" * 64),
        "door_tenant_foreign": changed(tenant_id=str(uuid4())),
        "malformed": changed(data={canaries.text: [canaries.text]}),
        "unknown_type": changed(type=canaries.text),
        "unsupported_version": changed(version=99),
        "ids_mismatch": changed(id=str(uuid4())),
        "key_mismatch": replace(changed(), key=text),
        "wrong_topic": _Spoiled(
            TURN_REQUESTS, encode(foreign), [*front.key.sign(encode(foreign)), note]
        ),
        "turn_mismatch": inner(GENERATION_EVENTS, failed),
        "context.unknown_turn": inner(TURN_EVENTS, _started(canaries.text)),
        "llm.unknown_turn": inner(CONTEXT_EVENTS, _planned(canaries.text)),
    }


def _started(model: str) -> TurnStartedV1:
    return TurnStartedV1(
        branch_id=uuid4(),
        base_seq=1,
        user_message_id=uuid4(),
        assistant_message_id=uuid4(),
        model=model,
        options=None,
        deadline_at=datetime.now(UTC) + timedelta(minutes=5),
    )


def _planned(model: str) -> StepPlannedV1:
    return StepPlannedV1(
        step_id=uuid4(),
        step_no=1,
        branch_id=uuid4(),
        seq=1,
        model=model,
        fingerprint="0" * 64,
        deadline_at=datetime.now(UTC) + timedelta(minutes=5),
    )


async def wrong_records(house: House, canaries: Canaries) -> dict[str, str]:
    """Records that are parked, at the door and behind it; why each was, by why it should be."""
    found: dict[str, str] = {}
    async with FrontEnd(house, await make_door_key(house, f"canary-{canaries.mark}")) as front:
        places = {}
        for reason, one in _spoiled(front, canaries).items():
            key = one.key or str(orjson.loads(one.value)["conversation_id"]).encode()
            places[reason] = await front.publish(one.topic, key, one.value, one.headers)
        for topic in (TURN_EVENTS, CONTEXT_EVENTS, GENERATION_EVENTS):
            text = canaries.text.encode()
            note = (canaries.header, canaries.header.encode())
            place = await front.publish(topic, text, text, [note])
            await house.dead_letter(READERS[topic], place)
        for reason, place in places.items():
            found[reason] = (await house.dead_letter(READERS[place.topic], place))["reason"]
        found[BUG] = await _unstorable(house, front, canaries)
    await invariant(house)
    await poison_record(house)
    return found


async def _unstorable(house: House, front: FrontEnd, canaries: Canaries) -> str:
    """A request whose row the database refuses, quoting it; why it was parked."""
    event = front.create(uuid4(), f"{canaries.key}-row")
    data = event.data.model_copy(update={"title": canaries.text})
    async with _changed_database(house, QUOTING % canaries.text, QUOTING_NO_MORE):
        dead = await house.dead_letter("ingestion", await front.ask(replace(event, data=data)))
        assert dead["error"] == "psycopg.errors.RaiseException"
        return str(dead["reason"])


@asynccontextmanager
async def _changed_database(house: House, change: str, back: str) -> AsyncIterator[None]:
    async with await psycopg.AsyncConnection.connect(
        house.stack.database_url, autocommit=True
    ) as connection:
        await connection.execute(change.encode())
        try:
            yield
        finally:
            await connection.execute(back.encode())


def _without_rights(house: House) -> Any:
    """While the gateway may not read plans: a mistake of ours that nobody expects."""
    right = "usage on schema context_assembly"
    role = "turnwire_frontend_gateway"
    return _changed_database(house, f"revoke {right} from {role}", f"grant {right} to {role}")


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield


async def ends_of(house: House, tenant: UUID) -> set[str]:
    """Reasons of the ends of a tenant's turns."""

    async def are_ended() -> bool:
        return not await house.rows(
            "select 1 from ingestion.open_turns where tenant_id = %s", tenant
        )

    await until(are_ended, within_s=20)
    rows = await house.rows(
        "select distinct reason from ingestion.turns where tenant_id = %s and reason is not null",
        tenant,
    )
    return {row["reason"] for row in rows}
