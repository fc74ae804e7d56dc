"""Bad input over HTTP: one clear error each, nothing lost, nothing half written."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import pytest

from libs import ids
from tests.rig.house import House
from tests.rig.provider import Rule
from tests.rig.waiting import until
from tests.rig.web import Place, body

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]

KIB = 1024

VALIDATION = (422, "validation-error")
BAD_BODIES = [
    ("more_than_a_mebibyte", body(content="a" * KIB * KIB), 413, "payload-too-large"),
    ("text_over_256_kib", body(content="a" * (256 * KIB + 1)), 413, "payload-too-large"),
    ("wide_text_over_256_kib", body(content="你" * (256 * KIB // 3 + 1)), 413, "payload-too-large"),
    ("no_json", b'{"content": ', *VALIDATION),
    ("nothing", b"", *VALIDATION),
    ("no_utf_8", b'{"content": "\xff"}', *VALIDATION),
    ("a_number_that_is_none", b'{"content": "a", "options": {"top_p": NaN}}', *VALIDATION),
    ("nested_too_deeply", b"[" * 100_000 + b"]" * 100_000, *VALIDATION),
    ("a_list", b'[{"content": "a"}]', *VALIDATION),
    ("a_number_as_text", body(content=7), *VALIDATION),
    ("null_as_text", body(content=None), *VALIDATION),
    ("no_text_at_all", body(policy="serialize"), *VALIDATION),
    ("empty_text", body(content=""), *VALIDATION),
    ("only_space", body(content=" \n\t"), *VALIDATION),
    ("only_nul", b'{"content": "\\u0000"}', *VALIDATION),
    ("unknown_field", body(content="a", contents="b"), *VALIDATION),
    ("unknown_option", body(content="a", options={"max_token": 5}), *VALIDATION),
    ("wrong_type_of_an_option", body(content="a", options={"max_tokens": "5"}), *VALIDATION),
    ("option_out_of_range", body(content="a", options={"temperature": 2.5}), *VALIDATION),
    ("unknown_policy", body(content="a", policy="whenever"), *VALIDATION),
    ("parent_that_is_no_id", body(content="a", parent="first"), *VALIDATION),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "status", "code"), [row[1:] for row in BAD_BODIES], ids=[row[0] for row in BAD_BODIES]
)
async def test_a_bad_body_is_refused_and_leaves_nothing(
    place: Place, data: bytes, status: int, code: str
) -> None:
    before = await place.web.stored()
    key = uuid4().hex

    answer = await place.web.post(place.conversation, data, **{"Idempotency-Key": key})

    assert (answer.status, answer.code) == (status, code)
    assert answer.body["retryable"] is False
    assert await place.web.stored() == before
    # The key is still free: nothing was begun with it.
    turn_id = ids.turn_id(place.web.key.tenant_id, place.conversation, key)
    assert (await place.web.send("GET", f"/v1/turns/{turn_id}")).code == "not-found"


async def test_an_unknown_field_is_told_with_the_nearest_name(place: Place) -> None:
    outer = await place.web.post(place.conversation, body(content="a", contents="b"))
    inner = await place.web.post(place.conversation, body(content="a", options={"max_token": 5}))

    assert outer.body["errors"] == [
        {"where": "/contents", "message": "unknown field", "nearest": "content"}
    ]
    assert inner.body["errors"] == [
        {"where": "/options/max_token", "message": "unknown field", "nearest": "max_tokens"}
    ]


async def test_a_body_that_does_not_tell_its_length_is_cut_at_the_limit(place: Place) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'{"content": "'
        for _ in range(4 * KIB):
            sent += KIB
            yield b"a" * KIB
            await asyncio.sleep(0)

    before = await place.web.stored()
    try:
        answer = await place.web.post(place.conversation, endless())
    except aiohttp.ClientOSError:
        # The server has closed while we were still sending; the answer may be lost on the way.
        assert sent >= KIB * KIB
    else:
        assert (answer.status, answer.code) == (413, "payload-too-large")
    assert await place.web.stored() == before


WRONG_HEADERS = [
    ("no_key", {"Idempotency-Key": None}, 400, "idempotency-key-missing"),
    ("empty_key", {"Idempotency-Key": ""}, 400, "idempotency-key-invalid"),
    ("key_of_two_words", {"Idempotency-Key": "one two"}, 400, "idempotency-key-invalid"),
    ("open_quote", {"Idempotency-Key": '"one'}, 400, "idempotency-key-invalid"),
    ("key_too_long", {"Idempotency-Key": "k" * 256}, 400, "idempotency-key-invalid"),
    ("key_with_other_letters", {"Idempotency-Key": "schlüssel"}, 400, "idempotency-key-invalid"),
    ("other_media", {"Content-Type": "text/plain"}, 415, "unsupported-media"),
    ("no_media", {"Content-Type": None}, 415, "unsupported-media"),
    ("compressed", {"Content-Encoding": "gzip"}, 415, "unsupported-media"),
    ("other_host", {"Host": "elsewhere.example"}, 421, "misdirected-request"),
]


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [row[1:] for row in WRONG_HEADERS],
    ids=[row[0] for row in WRONG_HEADERS],
)
async def test_a_bad_header_is_refused_and_leaves_nothing(
    place: Place, changes: dict[str, str | None], status: int, code: str
) -> None:
    before = await place.web.stored()
    headers = {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex, **changes}
    given = {name: value for name, value in headers.items() if value is not None}
    path = f"/v1/conversations/{place.conversation}/messages"

    answer = await place.web.send("POST", path, body(content="a"), given)

    assert (answer.status, answer.code) == (status, code)
    assert await place.web.stored() == before


async def test_two_keys_on_one_request_are_refused(place: Place) -> None:
    headers = [
        ("Content-Type", "application/json"),
        ("Idempotency-Key", "one"),
        ("Idempotency-Key", "two"),
    ]
    path = f"/v1/conversations/{place.conversation}/messages"

    answer = await place.web.send("POST", path, body(content="a"), headers)

    assert (answer.status, answer.code) == (400, "idempotency-key-invalid")


async def test_a_key_that_stands_for_another_message_is_refused(place: Place) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    first = await place.web.post(place.conversation, body(content="red"), **key)
    await place.web.house.come_to_rest()
    before = await place.web.stored()

    second = await place.web.post(place.conversation, body(content="blue"), **key)
    again = await place.web.post(place.conversation, body(content="red"), **key)

    assert (first.status, second.status, again.status) == (202, 422, 200)
    assert second.code == "idempotency-key-reused"
    assert again.body["turn_id"] == first.body["turn_id"]
    after = await place.web.stored()
    assert {t: n - before[t] for t, n in after.items() if n != before[t]} == {
        "ingestion.request_outcomes": 2
    }
    # Elsewhere the key is free.
    other = await place.client.conversation()
    elsewhere = await place.web.post(other, body(content="blue"), **key)
    assert elsewhere.status == 202


async def test_unknown_and_foreign_conversations_are_the_same_404(
    house: House, place: Place
) -> None:
    same_tenant = await house.client("bad-input", principal="somebody else")
    other_tenant = await house.client("bad-input-neighbour")
    foreign = [await same_tenant.conversation(), await other_tenant.conversation()]
    unknown = uuid4()
    for method, path in (
        ("GET", "/v1/conversations/{}"),
        ("GET", "/v1/conversations/{}/messages"),
        ("POST", "/v1/conversations/{}/messages"),
    ):
        answers = []
        for one in (unknown, *foreign):
            data = body(content="Let me in") if method == "POST" else None
            headers = {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex}
            answers.append(await place.web.send(method, path.format(one), data, headers))

        assert {(answer.status, answer.code) for answer in answers} == {(404, "not-found")}
        assert answers[0].told == answers[1].told == answers[2].told
        assert [sorted(answer.headers) for answer in answers[1:]] == [
            sorted(answers[0].headers)
        ] * 2
    rows = await house.rows(
        "select 1 from ingestion.messages where conversation_id = any(%s)", [unknown, *foreign]
    )
    assert rows == []


@pytest.mark.parametrize("shown", ["", "null", "undefined", "None"])
async def test_an_id_that_a_client_forgot_is_told_as_its_bug(place: Place, shown: str) -> None:
    before = await place.web.stored()

    answer = await place.web.send(
        "POST",
        f"/v1/conversations/{shown}/messages",
        body(content="Which one?"),
        {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex},
    )

    assert (answer.status, answer.code) == VALIDATION
    assert await place.web.stored() == before


BAD_CHANGES = [
    ("POST", "/v1/turns/{turn}/cancel", None, 409, "turn-already-terminal"),
    ("POST", "/v1/turns/{turn}/continue", {}, 409, "not-continuable"),
    ("POST", "/v1/turns/{turn}/regenerate", {"policy": "whenever"}, *VALIDATION),
    ("POST", "/v1/turns/{unknown}/cancel", None, 404, "not-found"),
    ("POST", "/v1/turns/{unknown}/regenerate", {}, 404, "not-found"),
    ("POST", "/v1/turns/{turn}/explain", {"text": "a" * 100 * KIB}, 413, "payload-too-large"),
    ("GET", "/v1/turns/{turn}/plan?step=99", None, 404, "not-found"),
    ("GET", "/v1/turns/{turn}/plan/diff?against={unknown}", None, 404, "not-found"),
    ("PATCH", "{talk}/messages/{answer}", {"content": "a"}, 409, "not-editable"),
    ("PATCH", "{talk}/messages/{unknown}", {"content": "a"}, 404, "not-found"),
    ("DELETE", "{talk}/messages/{unknown}", None, 404, "not-found"),
    ("PATCH", "{talk}", {}, *VALIDATION),
    ("PATCH", "{talk}", {"policy": "whenever"}, *VALIDATION),
    ("GET", "{talk}/messages?branch={unknown}", None, 404, "not-found"),
    ("PUT", "/v1/instructions", {"workspace": "a"}, 403, "forbidden"),
    ("GET", "/v1/turns/{turn}/captures", None, 403, "forbidden"),
]


@pytest.mark.parametrize(("method", "path", "wish", "status", "code"), BAD_CHANGES)
async def test_what_cannot_be_changed_is_refused_and_stays(
    place: Place, method: str, path: str, wish: Any, status: int, code: str
) -> None:
    before = await place.web.stored()
    asked = path.format(
        turn=place.turn,
        unknown=uuid4(),
        talk=f"/v1/conversations/{place.conversation}",
        answer=ids.message_id(place.turn, "assistant"),
    )
    headers = {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex}
    data = None if wish is None else body(**wish)

    answer = await place.web.send(method, asked, data, headers)

    assert (answer.status, answer.code) == (status, code)
    after = await place.web.stored()
    changed = {table for table, count in after.items() if count != before[table]}
    assert changed <= {"ingestion.request_outcomes"}


async def test_a_message_larger_than_the_window_fails_without_a_call(
    house: House, place: Place
) -> None:
    marker = f"large-{uuid4().hex[:6]}"
    text = f"{marker} " + " ".join(f"word{n}" for n in range(20_000))
    conversation = await place.client.conversation()

    post = await place.client.say(conversation, text)
    turn = await place.client.get(f"/v1/turns/{post.turn_id}")
    after = await place.client.say(conversation, "Something short then")

    assert post.accepted is not None
    assert post.accepted.status == 202
    assert (turn["status"], turn["reason"]) == ("failed", "context_too_large")
    assert post.stream is not None
    assert [e.event for e in post.stream.events][-2:] == ["error", "done"]
    assert not [r for r in house.provider.requests if marker in r.last_user_message]
    assert after.stream is not None
    assert after.stream.done is not None
    assert after.stream.done["status"] == "completed"
    (await house.verdict()).require(one_terminal_per_turn=2, stream_equals_store=6)


async def test_nul_is_removed_and_counted_and_half_a_pair_is_replaced(
    house: House, place: Place
) -> None:
    marker = f"r8-{uuid4().hex[:6]}"
    conversation = await place.client.conversation()
    key = {"Idempotency-Key": uuid4().hex}
    raw = (
        '{"content": "' + marker + ' a\\u0000b\\u0000 \\ud800 \\udc00\\ud83d\\ude00 \\\\u0000 c"}'
    ).encode()
    clean = f"{marker} ab \ufffd \ufffd😀 \\u0000 c"

    first = await place.web.post(conversation, raw, **key)
    again = await place.web.post(conversation, body(content=clean), **key)
    await house.come_to_rest()

    assert (first.status, again.status) == (202, 200)
    assert again.headers["Idempotent-Replayed"] == "true"
    shown = await place.client.get(f"/v1/conversations/{conversation}/messages")
    assert shown["data"][0]["content"] == clean
    (call,) = [r for r in house.provider.requests if marker in r.last_user_message]
    assert call.last_user_message == clean
    (turn,) = await house.rows(
        "select nul_removed from ingestion.turns where id = %s", UUID(first.body["turn_id"])
    )
    assert turn["nul_removed"] == 2


LONG_BYTES = 250 * KIB
SENTENCE = "每当夜幕降临、港口的灯光便一盏一盏地亮起来。"


@pytest.mark.parametrize("shift", [0, 1, 2])
async def test_a_250_kib_message_is_the_same_bytes_everywhere(
    house: House, place: Place, shift: int
) -> None:
    """Of three shifts of three-byte characters, two cut one at any edge of any buffer."""
    marker = f"long{uuid4().hex[:8]}"
    head = marker + "." * shift
    count = (LONG_BYTES - len(head)) // 3
    text = head + (SENTENCE * (count // len(SENTENCE) + 1))[:count]
    assert LONG_BYTES - 3 < len(text.encode()) <= LONG_BYTES
    house.provider.script(Rule(match=marker, deltas=("Read.",), hang_after=0))
    conversation = await place.client.conversation()

    answer = await place.web.post(conversation, body(content=text, model="gpt-4o"))
    assert answer.status == 202, answer.body
    turn_id = UUID(answer.body["turn_id"])

    async def is_asked() -> bool:
        return any(marker in r.last_user_message for r in house.provider.requests)

    await until(is_asked)
    (call,) = [r for r in house.provider.requests if marker in r.last_user_message]
    # While the provider hangs, the payload is still stored.
    (stored,) = await house.rows(
        "select y.payload, p.plan from context_assembly.payloads y "
        "join context_assembly.plans p using (tenant_id, step_id) where y.turn_id = %s",
        turn_id,
    )
    house.provider.release()
    await house.come_to_rest()

    payload = json.loads(stored["payload"])
    assert payload["messages"][-1] == {"role": "user", "content": text}
    assert text.encode() in stored["payload"]
    assert text.encode() in call.body
    assert call.json["messages"] == payload["messages"]
    fingerprint = hashlib.sha256(stored["payload"]).hexdigest()
    assert fingerprint in json.dumps(stored["plan"])
    shown = await place.client.get(f"/v1/conversations/{conversation}/messages")
    assert shown["data"][0]["content"].encode() == text.encode()
    assert [message["status"] for message in shown["data"]] == ["completed", "completed"]

    async def is_gone() -> bool:  # the clean-up reads ended turns twice a second
        return not await house.rows(
            "select from context_assembly.payloads where turn_id = %s", turn_id
        )

    await until(is_gone)
