"""What clients of the interface meet: answers, refusals, rights."""

import asyncio
import json
from collections.abc import AsyncIterator
from html import escape
from uuid import UUID, uuid4

import httpx
import pytest

from libs.api_keys import hash_api_key
from services.frontend_gateway.core.problems import KINDS
from tests.rig.gateway import GatewayRig, gateway_rig


@pytest.fixture
async def rig() -> AsyncIterator[GatewayRig]:
    async with gateway_rig() as rig:
        yield rig


def code(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["type"].endswith(f"/problems/{body['code']}")
    assert body["request_id"] == answer.headers["x-request-id"]
    assert answer.headers["x-should-retry"] == ("true" if body["retryable"] else "false")
    return answer.status_code, body["code"]


async def test_a_message_is_answered_with_the_identity_of_its_turn(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    answer = await rig.post(conversation, "When does the ferry leave?")

    assert answer.status_code == 202
    body = answer.json()
    assert list(body) == [
        "conversation_id",
        "turn_id",
        "user_message_id",
        "assistant_message_id",
        "seq",
        "status",
        "kind",
        "branch_id",
        "queue_position",
        "stream_url",
        "request_id",
    ]
    assert body["conversation_id"] == conversation
    assert answer.headers["location"] == f"/v1/turns/{body['turn_id']}"
    assert body["stream_url"] == f"/v1/turns/{body['turn_id']}/events"
    event = rig.ingestion.events[-1]
    assert (event.tenant_id, event.data.principal_id) == (
        rig.caller.tenant_id,
        rig.caller.principal_id,
    )
    assert str(event.id) == body["request_id"] == answer.headers["x-request-id"]


async def test_the_trace_of_the_caller_goes_on(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await rig.client.post(
        f"/v1/conversations/{conversation}/messages",
        json={"content": "Hi"},
        headers={"Idempotency-Key": "k", "traceparent": given},
    )
    continued = rig.ingestion.events[-1].traceparent
    assert continued is not None
    assert continued.split("-")[1] == given.split("-")[1]
    assert continued != given


async def test_without_a_trace_the_turn_begins_one_of_its_own(rig: GatewayRig) -> None:
    answer = await rig.post(await rig.conversation(), "Hi")
    traceparent = rig.ingestion.events[-1].traceparent
    assert traceparent is not None
    assert traceparent.split("-")[1] == UUID(answer.json()["turn_id"]).hex


async def test_a_repeat_names_the_same_turn(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    first = await rig.post(conversation, "Book the 9:40 ferry", "k1")
    again = await rig.post(conversation, "Book the 9:40 ferry", '"k1"')

    assert (first.status_code, again.status_code) == (202, 200)
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    same = ("turn_id", "user_message_id", "assistant_message_id", "seq", "stream_url")
    assert [first.json()[name] for name in same] == [again.json()[name] for name in same]


async def test_twenty_posts_of_one_key_over_two_gateways_make_one_turn(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    async with gateway_rig(beside=rig) as other:
        answers = await asyncio.gather(
            *(one.post(conversation, "once", "k1") for one in [rig, other] * 10)
        )
    assert {answer.json()["turn_id"] for answer in answers} == {answers[0].json()["turn_id"]}
    assert sorted(answer.status_code for answer in answers) == [*[200] * 19, 202]
    assert len(rig.store.turn_rows) == 1


async def test_one_key_with_another_body_is_refused(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    first = await rig.post(conversation, "red", "k1")
    second = await rig.post(conversation, "blue", "k1")
    elsewhere = await rig.post(await rig.conversation(), "blue", "k1")

    assert code(second) == (422, "idempotency-key-reused")
    assert elsewhere.status_code == 202
    assert elsewhere.json()["turn_id"] != first.json()["turn_id"]


@pytest.mark.parametrize("sent", ['""', '"', "a b", 'say "hi"', "x" * 256, "a,b", "ключ".encode()])
async def test_a_malformed_key_is_refused(rig: GatewayRig, sent: str | bytes) -> None:
    answer = await rig.client.post(
        f"/v1/conversations/{uuid4()}/messages",
        json={"content": "Hi"},
        headers=[(b"Idempotency-Key", sent if isinstance(sent, bytes) else sent.encode())],
    )
    assert code(answer) == (400, "idempotency-key-invalid")
    assert rig.ingestion.events == []


async def test_a_message_without_a_key_is_refused(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    path = f"/v1/conversations/{conversation}/messages"
    assert code(await rig.client.post(path, json={"content": "Hi"})) == (
        400,
        "idempotency-key-missing",
    )
    first = await rig.client.post("/v1/conversations", json={"message": {"content": "Hi"}})
    assert code(first) == (400, "idempotency-key-missing")


async def test_a_conversation_may_begin_with_a_message(rig: GatewayRig) -> None:
    asked = {"title": "Ferry", "message": {"content": "When?"}}
    headers = {"Idempotency-Key": "c1"}
    first = await rig.client.post("/v1/conversations", json=asked, headers=headers)
    again = await rig.client.post("/v1/conversations", json=asked, headers=headers)

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.headers["location"] == f"/v1/conversations/{first.json()['id']}"
    assert list(first.json()) == ["id", "title", "policy", "created_at", "turn"]
    assert first.json()["id"] == again.json()["id"]
    assert first.json()["turn"]["turn_id"] == again.json()["turn"]["turn_id"]


async def test_unknown_and_foreign_conversations_look_the_same(rig: GatewayRig) -> None:
    mine = await rig.conversation()
    stranger, _ = rig.new_key()
    headers = {"Authorization": f"Bearer {stranger}", "Idempotency-Key": "k"}
    body = {"content": "Hi"}

    def told(answer: httpx.Response) -> dict[str, object]:
        hidden = ("request_id", "instance")
        return {name: value for name, value in answer.json().items() if name not in hidden}

    foreign = await rig.client.post(
        f"/v1/conversations/{mine}/messages", json=body, headers=headers
    )
    unknown = await rig.client.post(
        f"/v1/conversations/{uuid4()}/messages", json=body, headers=headers
    )
    assert code(foreign) == code(unknown) == (404, "not-found")
    assert told(foreign) == told(unknown)
    for path in ("", "/messages"):
        seen = await rig.client.get(f"/v1/conversations/{mine}{path}", headers=headers)
        none = await rig.client.get(f"/v1/conversations/{uuid4()}{path}", headers=headers)
        assert code(seen) == code(none) == (404, "not-found")
        assert told(seen) == told(none)


@pytest.mark.parametrize("suffix", ["", "/events", "/plan"])
async def test_somebody_elses_turn_does_not_exist(rig: GatewayRig, suffix: str) -> None:
    turn = await rig.turn()
    other, _ = rig.new_key(tenant=rig.caller.tenant_id)
    headers = {"Authorization": f"Bearer {other}"}
    answer = await rig.client.get(f"/v1/turns/{turn.id}{suffix}", headers=headers)
    assert code(answer) == (404, "not-found")


@pytest.mark.parametrize("path", ["/v1/conversations//messages", "/v1/conversations/null/messages"])
async def test_no_conversation_id_is_an_error_of_its_own(rig: GatewayRig, path: str) -> None:
    answer = await rig.client.post(path, json={"content": "Hi"}, headers={"Idempotency-Key": "k"})
    assert code(answer) == (422, "validation-error")
    assert rig.ingestion.events == []


@pytest.mark.parametrize(
    ("body", "where", "nearest"),
    [
        (b'{"content": "Hi", "polcy": "serialize"}', "/polcy", "policy"),
        (b'{"content": "Hi", "options": {"max_token": 3}}', "/options/max_token", "max_tokens"),
        (b'{"content": 3}', "/content", None),
        (b'{"content": ""}', "/content", None),
        (b'{"content": " \\n"}', "/content", None),
        (b'{"content": "\\u0000"}', "/content", None),
        (b"{}", "/content", None),
        (b'{"content": "Hi", "policy": "whenever"}', "/policy", None),
        (b'{"content": "Hi", "options": {"temperature": "hot"}}', "/options/temperature", None),
        (b"[]", "", None),
        (b'{"content": "Hi"', "", None),
        (b'{"content": NaN}', "", None),
        (b'{"content": "\xff"}', "", None),
        (b"[" * 100_000, "", None),
        (b"", "", None),
    ],
)
async def test_a_wrong_body_is_told_with_the_field(
    rig: GatewayRig, body: bytes, where: str, nearest: str | None
) -> None:
    answer = await rig.client.post(
        f"/v1/conversations/{uuid4()}/messages",
        content=body,
        headers={"Idempotency-Key": "k", "Content-Type": "application/json"},
    )
    assert code(answer) == (422, "validation-error")
    (error,) = answer.json()["errors"]
    assert (error["where"], error.get("nearest")) == (where, nearest)
    assert rig.ingestion.events == []


async def test_the_value_of_a_wrong_field_is_not_repeated(rig: GatewayRig) -> None:
    answer = await rig.client.post(
        f"/v1/conversations/{uuid4()}/messages",
        json={"content": "Hi", "policy": "my-secret-words"},
        headers={"Idempotency-Key": "k"},
    )
    assert "my-secret-words" not in answer.text


async def test_nul_is_removed_and_counted_and_half_a_pair_is_replaced(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    answer = await rig.client.post(
        f"/v1/conversations/{conversation}/messages",
        content=b'{"content": "a\\u0000b \\ud83d! \\ud83d\\ude00"}',
        headers={"Idempotency-Key": "k", "Content-Type": "application/json"},
    )
    assert answer.status_code == 202
    (part,) = rig.ingestion.events[-1].data.parts
    assert (part.text, part.nul_removed) == ("ab \ufffd! \U0001f600", 1)


async def test_sizes_are_bounded(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    longest = "ü" * (128 * 1024)
    taken = await rig.post(conversation, longest)
    too_long = await rig.post(conversation, longest + "a")
    escapes = await rig.post(conversation, "\x01" * (200 * 1024))
    assert taken.status_code == 202
    assert code(too_long) == (413, "payload-too-large")
    assert code(escapes) == (413, "payload-too-large")
    assert len(rig.ingestion.events) == 2


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_body_above_a_mebibyte_is_refused_while_it_is_read(
    rig: GatewayRig, is_announced: bool
) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 64 * 1024 * 1024:
            sent += 65_536
            yield b" " * 65_536

    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    if is_announced:
        headers["Content-Length"] = str(64 * 1024 * 1024)
    try:
        answer = await rig.client.post(
            f"/v1/conversations/{uuid4()}/messages", content=endless(), headers=headers
        )
        assert code(answer) == (413, "payload-too-large")
    except (httpx.WriteError, httpx.ReadError):
        pass  # the server hung up on the rest, which is as good
    assert sent < 32 * 1024 * 1024
    assert rig.ingestion.events == []


@pytest.mark.parametrize("media", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_other_media_types_are_refused(rig: GatewayRig, media: str | None) -> None:
    headers = {"Idempotency-Key": "k"} | ({"Content-Type": media} if media else {})
    answer = await rig.client.post(
        f"/v1/conversations/{uuid4()}/messages", content=b"{}", headers=headers
    )
    assert code(answer) == (415, "unsupported-media")


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer nonsense", "Basic dXNlcjpwYXNz", "Bearer tw_" + "a" * 52],
)
async def test_every_wrong_key_gets_the_same_answer(
    rig: GatewayRig, authorization: str | None
) -> None:
    async with httpx.AsyncClient(base_url=rig.url) as client:
        headers = {} if authorization is None else {"Authorization": authorization}
        answer = await client.get("/v1/conversations", headers=headers)
    assert code(answer) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["detail"] == (
        "There is no valid API key with this request. Send Authorization: Bearer with your key."
    )


async def test_a_read_key_may_not_post(rig: GatewayRig) -> None:
    key, _ = rig.new_key(("read",))
    headers = {"Authorization": f"Bearer {key}"}
    assert code(await rig.client.post("/v1/conversations", json={}, headers=headers)) == (
        403,
        "forbidden",
    )
    assert (await rig.client.get("/v1/conversations", headers=headers)).status_code == 200


async def test_a_refusal_of_ingestion_reaches_the_client(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    running = str(uuid4())
    rig.ingestion.problem = {"code": "quota-exceeded", "detail": "32 turns", "turn_id": running}
    answer = await rig.post(conversation, "Hi")
    assert code(answer) == (429, "quota-exceeded")
    assert answer.json()["turn_id"] == running
    assert answer.json()["request_id"] == str(rig.ingestion.events[-1].id), "operators find it"
    assert int(answer.headers["retry-after"]) >= 1
    name, reason = "turnwire_admission_rejected_total", {"reason": "queue_full"}
    assert rig.registry.get_sample_value(name, reason) == 1


async def test_without_the_queue_a_message_is_refused_and_reading_works(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    rig.ingestion.is_away = True
    answer = await rig.post(conversation, "Hi")
    assert code(answer) == (503, "dependency-unavailable")
    assert answer.headers["retry-after"] == "1"
    assert (await rig.client.get(f"/v1/conversations/{conversation}")).status_code == 200


async def test_without_an_outcome_the_wait_ends_and_the_same_key_is_safe() -> None:
    async with gateway_rig(acceptance_wait_s=0.3) as rig:
        conversation = await rig.conversation()
        rig.ingestion.decides = False
        late = await rig.post(conversation, "Hi", "k1")
        assert code(late) == (503, "dependency-unavailable")
        rig.ingestion.decides = True
        await rig.ingestion.decide(rig.ingestion.events[-1])
        again = await rig.post(conversation, "Hi", "k1")
    assert again.status_code == 200
    assert len(rig.store.turn_rows) == 1


async def test_without_rings_the_outcome_is_found_by_polling(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    rig.ingestion.rings = False
    rig.redis.go_away()
    rig.ingestion.delay_s = 0.25
    rig.store.asked.clear()
    answers = await asyncio.gather(*(rig.post(conversation, f"m{i}") for i in range(20)))
    assert {answer.status_code for answer in answers} == {202}
    assert max(count for what, count in rig.store.asked if what == "outcomes") > 1


async def test_without_postgres_everything_says_so(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    rig.store.is_away = True
    answer = await rig.client.get(f"/v1/conversations/{conversation}")
    assert code(answer) == (503, "dependency-unavailable")
    assert "retry-after" in answer.headers


async def test_messages_page_in_order_with_page_size_one(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    for text in ("one", "two"):
        await rig.post(conversation, text)
    for order in ("asc", "desc"):
        seen: list[int] = []
        after = ""
        while True:
            page = (
                await rig.client.get(
                    f"/v1/conversations/{conversation}/messages?limit=1&order={order}{after}"
                )
            ).json()
            seen += [row["seq"] for row in page["data"]]
            assert page["first_id"] == page["last_id"] == page["data"][0]["id"]
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        assert seen == ([1, 2, 3, 4] if order == "asc" else [4, 3, 2, 1])


async def test_a_page_before_a_cursor_ends_right_before_it(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    for text in ("one", "two"):
        await rig.post(conversation, text)
    path = f"/v1/conversations/{conversation}/messages"
    last = (await rig.client.get(path)).json()["last_id"]
    page = (await rig.client.get(f"{path}?limit=2&before={last}")).json()
    assert [row["seq"] for row in page["data"]] == [2, 3]
    assert page["has_more"] is True


@pytest.mark.parametrize("query", ["after=nonsense", "before=1", f"after={UUID(int=1)}"])
async def test_a_cursor_that_was_never_issued_is_refused(rig: GatewayRig, query: str) -> None:
    conversation = await rig.conversation()
    for path in ("/v1/conversations", f"/v1/conversations/{conversation}/messages"):
        assert code(await rig.client.get(f"{path}?{query}")) == (400, "cursor-invalid")


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "limt=3"])
async def test_a_wrong_parameter_is_named(rig: GatewayRig, query: str) -> None:
    answer = await rig.client.get(f"/v1/conversations?{query}")
    assert code(answer) == (422, "validation-error")
    assert answer.json()["errors"][0]["where"] == query.partition("=")[0]


async def test_a_running_answer_is_listed_with_what_is_stored_of_it(rig: GatewayRig) -> None:
    turn = await rig.turn()
    rig.checkpoint(turn, "At nine", "1-4")
    path = f"/v1/conversations/{turn.conversation_id}/messages"
    answer = (await rig.client.get(path)).json()["data"][-1]
    assert (answer["status"], answer["content"]) == ("generating", "At nine")


async def test_the_record_of_a_turn_has_usage_and_no_text(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.finish(turn, "At 9:40.", "1-2")
    body = (await rig.client.get(f"/v1/turns/{turn.id}")).json()
    assert body["status"] == "completed"
    assert set(body["usage"]) == {"input", "output", "cached", "cost_usd", "estimated"}
    assert "At 9:40." not in json.dumps(body)


async def test_the_request_id_is_taken_or_made(rig: GatewayRig) -> None:
    given = await rig.client.get("/v1/conversations", headers={"X-Request-ID": "abc-1"})
    made = await rig.client.get("/v1/conversations", headers={"X-Request-ID": "a b"})
    assert given.headers["x-request-id"] == "abc-1"
    assert UUID(made.headers["x-request-id"])


async def test_a_request_id_of_the_client_is_never_an_events(rig: GatewayRig) -> None:
    """Two requests may have one, and the second would be taken for a repeat of the first."""
    conversation, chosen = await rig.conversation(), str(uuid4())
    for key in ("a", "b"):
        answer = await rig.client.post(
            f"/v1/conversations/{conversation}/messages",
            headers={"X-Request-ID": chosen, "Idempotency-Key": key},
            json={"content": "Hi"},
        )
        assert (answer.status_code, answer.headers["x-request-id"]) == (202, chosen)
    assert len({event.id for event in rig.ingestion.events[-2:]} - {UUID(chosen)}) == 2


async def test_a_foreign_host_is_refused(rig: GatewayRig) -> None:
    answer = await rig.client.get("/v1/conversations", headers={"Host": "evil.example"})
    assert code(answer) == (421, "misdirected-request")


async def test_unknown_paths_and_methods_are_problems_too(rig: GatewayRig) -> None:
    assert code(await rig.client.get("/v1/nothing")) == (404, "not-found")
    answer = await rig.client.delete("/v1/conversations")
    assert code(answer) == (405, "method-not-allowed")


async def test_the_type_of_every_problem_leads_to_its_page(rig: GatewayRig) -> None:
    told = (await rig.client.get("/v1/nothing")).json()["type"]
    assert told == f"{rig.url}/problems/not-found"
    for kind in KINDS.values():
        page = await rig.client.get(told.replace("not-found", kind.slug))
        assert page.status_code == 200, kind.slug
        assert escape(kind.advice) in page.text
    assert (await rig.client.get("/problems")).status_code == 200


async def test_durations_are_counted_by_route_and_never_by_path(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.client.get(f"/v1/turns/{turn.id}")
    name = "turnwire_http_request_duration_seconds_count"
    labels = {"method": "GET", "route": "/v1/turns/{turn_id}", "status": "200"}
    assert rig.registry.get_sample_value(name, labels) == 1


async def test_a_session_stands_for_its_key_and_needs_the_same_origin(rig: GatewayRig) -> None:
    own = {"Origin": rig.url}
    async with httpx.AsyncClient(base_url=rig.url) as browser:
        wrong = await browser.post("/ui/login", json={"key": "tw_" + "a" * 52}, headers=own)
        assert code(wrong) == (401, "unauthenticated")
        elsewhere = {"Origin": "http://evil.example"}
        refused = await browser.post("/ui/login", json={"key": rig.key}, headers=elsewhere)
        assert code(refused) == (403, "forbidden")
        answer = await browser.post("/ui/login", json={"key": rig.key}, headers=own)
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Secure" not in cookie  # this server is asked without TLS
        assert rig.key not in cookie
        assert (await browser.get("/v1/conversations")).status_code == 200
        for headers in ({}, elsewhere):
            posted = await browser.post("/v1/conversations", json={}, headers=headers)
            assert code(posted) == (403, "forbidden")
        posted = await browser.post("/v1/conversations", json={}, headers=own)
        assert posted.status_code == 201
        token = browser.cookies["turnwire_session"]
        assert token.encode() not in rig.store.sessions
        assert (await browser.post("/ui/logout", headers=own)).status_code == 204
        headers = {"Cookie": f"turnwire_session={token}"}
        assert code(await browser.get("/v1/conversations", headers=headers))[0] == 401


async def test_pages_behind_a_proxy_that_ends_tls_are_of_the_public_origin() -> None:
    public = "https://chat.example"
    async with (
        gateway_rig(public_url=public, allowed_hosts=("chat.example",)) as rig,
        httpx.AsyncClient(base_url=rig.url, headers={"Host": "chat.example"}) as browser,
    ):
        body = {"key": rig.key}
        answer = await browser.post("/ui/login", json=body, headers={"Origin": public})
        assert answer.status_code == 200
        assert "Secure" in answer.headers["set-cookie"]
        refused = await browser.post("/ui/login", json={"key": ""}, headers={"Origin": public})
        assert refused.json()["type"].startswith(f"{public}/problems/")
        elsewhere = {"Origin": "https://evil.example"}
        assert code(await browser.post("/ui/login", json=body, headers=elsewhere))[0] == 403
        beside = {"Origin": public, "Host": "10.0.0.7:8000"}
        assert code(await browser.post("/ui/login", json=body, headers=beside))[0] == 421


async def test_a_revoked_key_ends_its_sessions(rig: GatewayRig) -> None:
    own = {"Origin": rig.url}
    async with httpx.AsyncClient(base_url=rig.url) as browser:
        await browser.post("/ui/login", json={"key": rig.key}, headers=own)
        del rig.store.keys[hash_api_key(rig.key)]
        assert code(await browser.get("/v1/conversations")) == (401, "unauthenticated")


async def test_pages_allow_no_script_of_anybody_else(rig: GatewayRig) -> None:
    for path in ("/ui/", "/ui/login", "/docs", "/problems/not-found"):
        page = await rig.client.get(path)
        assert page.status_code == 200, path
        policy = page.headers["content-security-policy"]
        assert "unsafe-inline" not in policy
        assert "default-src 'none'" in policy
        assert "<script>" not in page.text
        assert "style=" not in page.text
        assert 'src="http' not in page.text
        assert 'href="http' not in page.text


async def test_a_page_is_not_sent_twice(rig: GatewayRig) -> None:
    first = await rig.client.get("/ui/")
    again = await rig.client.get("/ui/", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""
