"""Who may read, from which place, and how much at once: everybody else gets one clear refusal."""

import time
from uuid import uuid4

import pytest

from deploy.local.ports import pick_port
from deploy.local.processes import ServiceSpec
from tests.rig.house import House
from tests.rig.provider import Rule
from tests.rig.waiting import until
from tests.rig.web import TIMEOUT, Place, Web, body

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]

CACHED_S = 5.0
"""What is asked later than this after its key was revoked is refused."""

VALIDATION = (422, "validation-error")


async def test_wrong_missing_and_revoked_api_keys_are_the_same_401(
    house: House, place: Place
) -> None:
    revoked = await house.make_key("bad-input", "leaver")
    path = "/v1/conversations"
    asks = {"Authorization": f"Bearer {revoked.key}"}
    assert (await place.web.send("GET", path, headers=asks)).status == 200
    await house.operate("select frontend_gateway.op_revoke_key(%s, 'tests')", revoked.key_id)

    revoked_at = time.monotonic()

    async def is_refused() -> bool:
        asked_at = time.monotonic()
        if (await place.web.send("GET", path, headers=asks)).status == 401:
            return True
        assert asked_at - revoked_at <= CACHED_S, "let in with a key that was revoked"
        return False

    await until(is_refused)
    wrong = [
        asks,
        {"Authorization": ""},
        {"Authorization": "Bearer tw_" + "a" * 52},
        {"Authorization": "Bearer short"},
        {"Authorization": f"Basic {place.web.key.key}"},
    ]
    answers = [await place.web.send("GET", path, headers=one) for one in wrong]

    assert {(answer.status, answer.code) for answer in answers} == {(401, "unauthenticated")}
    assert all(answer.told == answers[0].told for answer in answers)
    assert all("WWW-Authenticate" in answer.headers for answer in answers)


async def test_a_key_without_the_scope_may_read_and_not_ask(house: House, place: Place) -> None:
    reader = await house.make_key("bad-input", scopes=["read"])
    asks = {"Authorization": f"Bearer {reader.key}"}

    shown = await place.web.send("GET", f"/v1/turns/{place.turn}", headers=asks)
    refused = await place.web.post(place.conversation, body(content="a"), **asks)

    assert shown.status == 200
    assert (refused.status, refused.code) == (403, "forbidden")


async def test_cursors_that_were_never_issued_are_refused(house: House, place: Place) -> None:
    foreign = await (await house.client("bad-input-neighbour")).conversation()
    messages = f"/v1/conversations/{place.conversation}/messages"
    for path in ("/v1/conversations", messages):
        for cursor in ("first", str(uuid4()), str(foreign), str(uuid4()).upper(), ""):
            for name in ("after", "before"):
                answer = await place.web.send("GET", f"{path}?{name}={cursor}")
                assert (answer.status, answer.code) == (400, "cursor-invalid"), (path, cursor)
        for query in ("limit=0", "limit=101", "limit=x", "order=up", "aftr=1"):
            answer = await place.web.send("GET", f"{path}?{query}")
            assert (answer.status, answer.code) == VALIDATION, query
    suggestion = await place.web.send("GET", "/v1/conversations?aftr=1")
    assert suggestion.body["errors"][0]["nearest"] == "after"


@pytest.mark.parametrize(
    "position",
    ["abc", "1", "1-", "-1-2", "1-0", "1-99999", "7-1", "2147483647-9", "1-2-3", "\uff11-1"],
)
async def test_stream_positions_that_were_never_issued_are_refused(
    place: Place, position: str
) -> None:
    path = f"/v1/turns/{place.turn}/events"
    by_query = await place.web.send("GET", f"{path}?after={position}")
    assert (by_query.status, by_query.code) == (400, "cursor-invalid")
    if position.isascii():
        by_header = await place.web.send("GET", path, headers={"Last-Event-ID": position})
        assert (by_header.status, by_header.code) == (400, "cursor-invalid")


async def test_more_open_streams_than_a_key_may_have_are_refused(
    house: House, place: Place
) -> None:
    """On a gateway of its own, which allows two."""
    marker = f"streams-{uuid4().hex[:6]}"
    house.provider.script(Rule(match=marker, deltas=("Still ", "here."), hang_after=1))
    post = await place.client.send(place.client.note(place.conversation, f"{marker} wait"))
    port, name = pick_port(), "frontend_gateway"
    settings = {
        **house.environment(name),
        "TURNWIRE_FRONTEND_GATEWAY__PORT": str(port),
        "TURNWIRE_FRONTEND_GATEWAY__MAX_STREAMS_PER_KEY": "2",
    }
    path = f"/v1/turns/{post.turn_id}/events"
    await house.supervisor.start([ServiceSpec(name, settings, index=90)])
    try:
        web = Web(house, place.web._session, place.web.key)
        web.url = f"http://127.0.0.1:{port}"
        asks = {"Authorization": f"Bearer {web.key.key}"}
        async with (
            web._session.get(web.url + path, headers=asks, timeout=TIMEOUT) as first,
            web._session.get(web.url + path, headers=asks, timeout=TIMEOUT) as second,
        ):
            assert (first.status, second.status) == (200, 200)
            third = await web.send("GET", path)
            other = await house.make_key("bad-input")
            elsewhere = {"Authorization": f"Bearer {other.key}"}
            async with web._session.get(web.url + path, headers=elsewhere) as fourth:
                assert fourth.status == 200
        async with web._session.get(web.url + path, headers=asks, timeout=TIMEOUT) as again:
            freed = again.status
    finally:
        await house.supervisor.process(name, 90).stop()
        del house.supervisor._processes[name, 90]
        house.provider.release()

    assert (third.status, third.code) == (429, "quota-exceeded")
    assert third.body["retryable"] is True
    assert int(third.headers["Retry-After"]) > 0
    assert freed == 200
    await place.client.follow(post)
    (await house.verdict()).require(one_terminal_per_turn=1, stream_equals_store=3)
