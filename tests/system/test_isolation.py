"""Two tenants, each with a canary in everything it says: neither ever sees the other's.

The requests are made from the running gateway's own OpenAPI document, so a new operation or a new
id parameter is tried here without anybody remembering it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import orjson
import pytest
import pytest_asyncio

from tests.rig.client import Client
from tests.rig.house import ApiKey, House
from tests.rig.ledger import Post, StreamLog
from tests.rig.provider import Rule

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]

TIMEOUT = aiohttp.ClientTimeout(total=20)
TURNS_EACH = 4
METHODS = ("get", "put", "post", "patch", "delete")
SCOPES = ("chat", "read", "admin", "captures")
"""All of them, so that an operation is refused for the id and not for the key."""

ENDLESS = "/v1/conversations/{conversation_id}/events"
"""Ends with the conversation alone; what it holds at first is read."""

NOTHING_KEPT = "/v1/turns/{turn_id}/captures"
"""Of turns that went well no payload is kept."""

ASK_WHICH = ("/v1/turns/{turn_id}/plan/text", "/v1/turns/{turn_id}/plan/excerpts")
"""Texts of a plan, which have to be named."""

BARE = {NOTHING_KEPT: 404} | dict.fromkeys(ASK_WHICH, 422)
"""What is answered instead of 200 where nothing but the path is sent."""

OPERATORS = "/v1/ops/"
"""Operators see every tenant's ids and states, and no word of anybody; nobody else's key opens any
of it, which ``test_broken_turns`` shows."""


@dataclass(slots=True)
class Party:
    """A tenant's principal, what it said and every id it was given."""

    key: ApiKey
    client: Client
    canary: str
    posts: list[Post] = field(default_factory=list)
    ids: dict[str, UUID] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parties:
    """Two tenants, and a second principal of the first one's tenant."""

    first: Party
    second: Party
    colleague: Party

    def others(self) -> list[tuple[Party, Party]]:
        """Who asks, and about whom."""
        return [
            (self.first, self.second),
            (self.second, self.first),
            (self.first, self.colleague),
            (self.colleague, self.first),
        ]


async def settle_in(house: House, tenant: str, principal: str) -> Party:
    """Talk a little, so that there is something to be seen."""
    canary = f"canary{uuid4().hex}"
    house.provider.script(Rule(match=canary, echo=True, echo_chars=24, delay_ms=5))
    client = await house.client(tenant, principal=principal)
    party = Party(await house.make_key(tenant, principal, scopes=SCOPES), client, canary)
    conversation = await client.conversation()
    for n in range(TURNS_EACH):
        party.posts.append(await client.say(conversation, f"{canary} says {n}"))
    accepted = party.posts[-1].accepted
    assert accepted is not None
    party.ids = {
        name: UUID(value)
        for name, value in accepted.body.items()
        if name.endswith("_id") and name != "request_id"
    }
    (step,) = await house.rows(
        "select step_id from context_assembly.steps where turn_id = %s", party.ids["turn_id"]
    )
    party.ids |= {
        "request_id": UUID(accepted.body["request_id"]),
        "message_id": party.ids["user_message_id"],
        "step_id": step["step_id"],
        "tenant_id": party.key.tenant_id,
        "principal_id": party.key.principal_id,
        "key_id": party.key.key_id,
    }
    return party


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def parties(house: House) -> Parties:
    mark = uuid4().hex[:6]
    return Parties(
        *await asyncio.gather(
            settle_in(house, f"north-{mark}", "anna"),
            settle_in(house, f"south-{mark}", "anna"),
            settle_in(house, f"north-{mark}", "bela"),
        )
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        yield session


@dataclass(frozen=True, slots=True)
class Try:
    """One request about an id: a path, and a body where the operation takes one."""

    method: str
    path: str
    where: str
    body: dict[str, Any] | None
    is_endless: bool = False


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference means."""
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: dict[str, Any] = document["components"]["schemas"][reference.rsplit("/", 1)[-1]]
    return found


def is_id(document: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Whether a value of this schema may be an id."""
    schema = resolved(document, schema)
    return schema.get("format") == "uuid" or any(
        is_id(document, one) for one in schema.get("anyOf", ())
    )


def tries(document: dict[str, Any], own: Party, foreign: UUID) -> Iterator[Try]:
    """Every operation with one id replaced by a foreign one, and its other ids one's own."""
    for path, operations in document["paths"].items():
        if path.startswith(OPERATORS):
            continue
        for method in METHODS:
            if method not in operations:
                continue
            operation = operations[method]
            parameters = operation.get("parameters", [])
            names = [p["name"] for p in parameters if p["in"] == "path"]
            content = operation.get("requestBody", {}).get("content", {})
            media = content.get("application/json")
            body = media["example"] if media else None
            own_path = path.format(**{name: own.ids[name] for name in names})
            for name in names:
                ids = {**own.ids, name: foreign}
                yield Try(method, path.format(**ids), f"path {name}", body)
            for parameter in parameters:
                if parameter["in"] == "query" and is_id(document, parameter["schema"]):
                    query = f"{own_path}?{parameter['name']}={foreign}"
                    yield Try(method, query, f"query {parameter['name']}", body)
            taken = resolved(document, media["schema"]) if media else {}
            needed = {k: v for k, v in (body or {}).items() if k in taken.get("required", ())}
            for name, schema in taken.get("properties", {}).items():
                if is_id(document, schema):
                    yield Try(method, own_path, f"body {name}", {**needed, name: str(foreign)})


async def ask(
    house: House, session: aiohttp.ClientSession, party: Party, one: Try
) -> tuple[int, str]:
    """Status and everything that came back, headers included."""
    headers = {"Authorization": f"Bearer {party.key.key}", "Idempotency-Key": uuid4().hex}
    url = house.gateway_url() + one.path
    async with session.request(one.method, url, json=one.body, headers=headers) as response:
        is_endless = one.is_endless and response.status == HTTPStatus.OK
        raw = await (response.content.readany() if is_endless else response.read())
        return response.status, f"{dict(response.headers)} {raw.decode()}"


async def document_of(house: House, session: aiohttp.ClientSession) -> dict[str, Any]:
    async with session.get(house.gateway_url() + "/openapi.json") as response:
        document: dict[str, Any] = orjson.loads(await response.read())
        return document


async def stored_of(house: House, party: Party) -> list[dict[str, Any]]:
    """Everything said by and to a party, and its turns."""
    return await house.rows(
        "select m.seq, m.text, m.status, t.status as turn, t.reason from ingestion.messages m "
        "join ingestion.turns t on t.id = m.turn_id where t.principal_id = %s order by m.id",
        party.key.principal_id,
    )


async def test_no_operation_shows_or_changes_anything_by_a_foreign_id(
    house: House, session: aiohttp.ClientSession, parties: Parties
) -> None:
    document = await document_of(house, session)
    tried: set[str] = set()
    for own, other in parties.others():
        before = await stored_of(house, other)
        for kind, foreign in other.ids.items():
            if own.key.tenant_id == foreign:
                continue  # a colleague's tenant is one's own
            asked = list(tries(document, own, foreign))
            unknown = list(tries(document, own, uuid4()))
            answers = await asyncio.gather(
                *(ask(house, session, own, one) for one in (*asked, *unknown))
            )
            halves = zip(asked, answers[: len(asked)], answers[len(asked) :], strict=True)
            for one, (status, answer), (expected, _) in halves:
                tried.add(f"{one.method} {one.path.split('?')[0].count('/')} {one.where}")
                assert other.canary not in answer, (kind, one)
                assert status == expected, (kind, one, answer)
                assert status in (400, 404, 409), (kind, one, answer)
        assert await stored_of(house, other) == before

    # Paths with an id in them, lists with cursors, the parent of a message, what is explained.
    assert len(tried) >= 20, tried


async def test_no_list_shows_a_foreign_thing(
    house: House, session: aiohttp.ClientSession, parties: Parties
) -> None:
    document = await document_of(house, session)
    lists = [
        path
        for path, item in document["paths"].items()
        if "get" in item and not path.startswith(OPERATORS)
    ]
    for own, other in parties.others():
        for path in lists:
            one = Try("get", path.format(**own.ids), "nothing", None, path == ENDLESS)
            status, answer = await ask(house, session, own, one)
            assert status == BARE.get(path, 200), (path, answer)
            assert other.canary not in answer, path
            own_tenant = own.key.tenant_id == other.key.tenant_id
            for kind, foreign in other.ids.items():
                assert str(foreign) not in answer or (own_tenant and kind == "tenant_id"), path
            if path.endswith(("/events", "/messages")) and path != ENDLESS:
                assert own.canary in answer, path


async def test_operators_read_ids_of_everybody_and_no_word_of_anybody(
    house: House, session: aiohttp.ClientSession, parties: Parties
) -> None:
    document = await document_of(house, session)
    everybody = [parties.first, parties.second, parties.colleague]
    paths = {f"{OPERATORS}search?q={id_}" for party in everybody for id_ in party.ids.values()}
    for path, item in document["paths"].items():
        if path.startswith(OPERATORS) and "get" in item:
            ids = [{**party.ids, "dead_letter_id": uuid4()} for party in everybody]
            paths |= {path.format(**one) for one in ids}
    tries = [Try("get", path, "nothing", None) for path in sorted(paths)]
    told = ""
    for one in tries:
        status, answer = await ask(house, session, parties.first, one)
        assert status in (200, 404, 422), (one.path, answer)
        told += answer
    for party in everybody:
        assert told.count(str(party.ids["turn_id"])) > 1
        assert party.canary not in told


async def test_no_stream_carries_a_foreign_word(house: House, parties: Parties) -> None:
    """All three talk at once, over both gateways, and every stream is cut and resumed."""

    async def talk(party: Party, number: int) -> StreamLog:
        post = await party.client.send(
            party.client.note(party.posts[0].conversation_id, f"{party.canary} again {number}"),
            gateway=number,
        )
        assert post.turn_id is not None
        post.stream = StreamLog(post.turn_id)
        connections = 0
        while post.stream.done is None:
            await party.client.read(post.stream, gateway=connections, at_most=2)
            connections += 1
        return post.stream

    everybody = [parties.first, parties.second, parties.colleague]
    for number in range(2):
        async with asyncio.timeout(30):
            streams = await asyncio.gather(*(talk(party, number) for party in everybody))
        for party, stream in zip(everybody, streams, strict=True):
            whole = b"".join(event.data for event in stream.events).decode()
            assert party.canary in stream.text
            for other in everybody:
                if other is not party:
                    assert other.canary not in whole
                    assert other.canary not in stream.text
    (await house.verdict()).require(one_terminal_per_turn=6, stream_equals_store=18)


async def test_no_prompt_holds_a_foreign_word(house: House, parties: Parties) -> None:
    everybody = [parties.first, parties.second, parties.colleague]
    asked = 0
    for party in everybody:
        prompts = [
            r.body.decode() for r in house.provider.requests if party.canary in r.body.decode()
        ]
        assert len(prompts) >= TURNS_EACH
        asked += len(prompts)
        for other in everybody:
            if other is not party:
                assert not any(other.canary in prompt for prompt in prompts)
    assert asked >= 3 * TURNS_EACH


async def test_no_log_line_holds_what_was_said(house: House, parties: Parties) -> None:
    canaries = [parties.first.canary, parties.second.canary, parties.colleague.canary]
    for process in house.supervisor.processes:
        log = process.log_path.read_text(encoding="utf-8", errors="replace")
        assert log, process.name
        for canary in canaries:
            assert canary not in log, process.name


async def test_one_idempotency_key_of_two_tenants_is_two_turns(
    house: House, parties: Parties
) -> None:
    key = uuid4().hex
    turns = []
    for party in (parties.first, parties.second, parties.colleague):
        conversation = await party.client.conversation()
        post = party.client.note(conversation, f"{party.canary} same key", key=key)
        await party.client.send(post)
        await party.client.follow(post)
        assert [reply.status for reply in post.replies] == [202]
        assert post.stream is not None
        assert party.canary in post.stream.text
        turns.append(post.turn_id)
    assert len(set(turns)) == 3
    (await house.verdict()).require(one_turn_per_key=6)
