"""Streams over a real connection: complete, in order, once, whatever is lost on the way."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import httpx
import pytest

from libs.api_keys import hash_api_key
from schemas.streams import EntryId, content_delta, generating
from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.hub import Pace
from tests.rig import waiting
from tests.rig.gateway import GatewayRig, gateway_rig, started
from tests.rig.sse import Copy, Parser, events, follow

WORDS = [f"word{i} " for i in range(30)]
LIMIT_S = 30
"""Longest wait for anything; the machine may be busy."""


@pytest.fixture
async def rig() -> AsyncIterator[GatewayRig]:
    async with gateway_rig() as rig:
        yield rig


async def until(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await waiting.until(holds, within_s=LIMIT_S)


async def read_until(rig: GatewayRig, turn: TurnView, copy: Copy, count: int) -> None:
    """Read some events more, then drop the connection."""
    headers = {"Last-Event-ID": copy.last_id} if copy.last_id else {}
    seen = len(copy.heard)
    stream = events(rig.client, f"/v1/turns/{turn.id}/events", headers)
    async for event in stream:
        copy.take(event)
        if len(copy.heard) - seen >= count:
            await stream.aclose()  # type: ignore[attr-defined]
            return


async def raw(rig: GatewayRig, turn: TurnView, **headers: str) -> bytes:
    answer = await rig.client.get(f"/v1/turns/{turn.id}/events", headers=headers)
    return answer.content


async def test_a_running_turn_is_followed_to_its_end(rig: GatewayRig) -> None:
    turn = await rig.turn()
    following = asyncio.create_task(follow(rig.client, turn.id))
    await until(lambda: rig.gateway.hub.stream_count == 1)
    await rig.live.append(turn.id, [generating(1)])
    for i, word in enumerate(WORDS):
        await rig.live.append(turn.id, [content_delta(EntryId(1, 2 + i), word)])
    await rig.finish(turn, "".join(WORDS), "1-31")

    copy = await following
    assert copy.text == "".join(WORDS)
    assert copy.names == ["message_started", "status", *["content_delta"] * 30, "usage", "done"]
    assert copy.done is not None
    assert copy.done["length"] == len(copy.text)
    await until(lambda: rig.gateway.hub.stream_count == 0)


async def test_the_answer_can_stream_in_the_response_of_the_post(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    parser, copy = Parser(), Copy()
    async with rig.client.stream(
        "POST",
        f"/v1/conversations/{conversation}/messages",
        json={"content": "Hi"},
        headers={"Idempotency-Key": "k", "Accept": "text/event-stream"},
    ) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        (turn,) = rig.store.turn_rows.values()
        assert response.headers["location"] == f"/v1/turns/{turn.id}"
        await rig.live.append(turn.id, [started(turn)])
        await rig.write(turn, ["a", "b"])
        await rig.finish(turn, "ab", "1-3")
        async for chunk in response.aiter_raw():
            for event in parser.feed(chunk):
                copy.take(event)
    assert copy.text == "ab"
    assert parser.retry_ms == 2000
    again = await rig.client.post(
        f"/v1/conversations/{conversation}/messages",
        json={"content": "Hi"},
        headers={"Idempotency-Key": "k", "Accept": "text/event-stream"},
    )
    assert again.headers["idempotent-replayed"] == "true"
    assert again.content == await raw(rig, turn)


async def test_a_turn_that_ended_before_its_outcome_was_read_streams_its_stored_answer(
    rig: GatewayRig,
) -> None:
    """The outcome says ``completed`` and nothing else of the end; the turn's row has the rest."""
    conversation = await rig.conversation()
    rig.ingestion.decides = False
    asking = asyncio.create_task(
        rig.client.post(
            f"/v1/conversations/{conversation}/messages",
            json={"content": "Hi"},
            headers={"Idempotency-Key": "k", "Accept": "text/event-stream"},
        )
    )
    await until(lambda: any(e.data.TYPE == "turn.requested" for e in rig.ingestion.events))
    event = rig.ingestion.events[-1]
    outcome = rig.ingestion._outcome(event)
    ended = rig.end(rig.store.turn_rows[event.turn_id], "ab", "1-3")
    rig.store.outcome_rows[event.id] = replace(outcome, status=ended.status)

    answer = await asking
    assert "idempotent-replayed" not in answer.headers
    assert answer.content == await raw(rig, ended)
    assert ended.sha256 is not None
    assert ended.sha256.encode() in answer.content


async def test_headers_keep_proxies_from_buffering(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.finish(turn, "", None)
    answer = await rig.client.get(f"/v1/turns/{turn.id}/events")
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.content.startswith(b"retry: 2000\n\n")
    assert answer.content.count(b"retry:") == 1


async def test_texts_that_look_like_the_protocol_arrive_as_they_are(rig: GatewayRig) -> None:
    texts = ["a\nb", "\n\n", "\r", "data: x", ": y", "event: done\n\n", "x" * 200_000, "\u2028é😀"]
    turn = await rig.turn()
    await rig.write(turn, texts)
    following = asyncio.create_task(follow(rig.client, turn.id))
    await until(lambda: rig.gateway.hub.stream_count == 1)
    await rig.write(turn, texts, n=2 + len(texts))
    await rig.finish(turn, "".join(texts * 2), f"1-{1 + 2 * len(texts)}")
    copy = await following
    heard = [event.data["text"] for event in copy.heard if event.event == "content_delta"]
    assert heard == texts * 2


async def test_a_reload_in_the_middle_gets_everything_once(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, WORDS[:10])
    await read_until(rig, turn, Copy(), 11)
    await until(lambda: rig.gateway.hub.stream_count == 0)
    await rig.write(turn, WORDS[10:20], n=12)
    following = asyncio.create_task(follow(rig.client, turn.id))
    await until(lambda: rig.gateway.hub.stream_count == 1)
    await rig.write(turn, WORDS[20:], n=22)
    await rig.finish(turn, "".join(WORDS), "1-31")
    copy = await following
    assert copy.text == "".join(WORDS)
    assert "snapshot" not in copy.names


async def test_two_clients_get_all_of_it_and_one_resumes_on_another_gateway(
    rig: GatewayRig,
) -> None:
    turn = await rig.turn()
    await rig.write(turn, WORDS[:15])
    cut = Copy()
    await read_until(rig, turn, cut, 8)
    whole = asyncio.create_task(follow(rig.client, turn.id))
    await rig.write(turn, WORDS[15:], n=17)
    async with gateway_rig(beside=rig) as other:
        resumed = asyncio.create_task(follow(other.client, turn.id, cut))
        await until(lambda: other.gateway.hub.stream_count == 1)
        await rig.finish(turn, "".join(WORDS), "1-31")
        assert (await whole).heard == (await resumed).heard


async def test_any_gateway_sends_the_same_bytes(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, WORDS)
    await rig.finish(turn, "".join(WORDS), "1-31")
    async with gateway_rig(beside=rig) as other:
        assert await raw(rig, turn) == await raw(other, turn)
        position = {"Last-Event-ID": "1-9"}
        resumed = await raw(rig, turn, **position)
        assert resumed == await raw(other, turn, **position)
        rig.redis.flush()
        assert await raw(rig, turn) == await raw(other, turn)


async def test_a_finished_turn_is_its_text_and_its_end(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, WORDS)
    await rig.finish(turn, "".join(WORDS), "1-31")
    with_redis = await follow(rig.client, turn.id)
    rig.redis.flush()
    without = await follow(rig.client, turn.id)
    assert with_redis.heard == without.heard
    assert with_redis.names == ["snapshot", "usage", "done"]
    assert with_redis.heard[0].id == "1-31"
    assert with_redis.text == "".join(WORDS)


async def test_nothing_is_left_after_done_alone(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, ["a"])
    await rig.finish(turn, "a", "1-2")
    copy = await follow(rig.client, turn.id)
    path = f"/v1/turns/{turn.id}/events"
    assert copy.last_id == "2147483647-2"
    last = await rig.client.get(path, headers={"Last-Event-ID": copy.last_id})
    assert (last.status_code, last.content) == (204, b"")
    before = await rig.client.get(path, headers={"Last-Event-ID": "2147483647-1"})
    assert before.content.count(b"event:") == 1
    assert b"event: done" in before.content


async def test_the_header_wins_over_the_parameter(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, ["a", "b"])
    await rig.finish(turn, "ab", "1-3")
    path = f"/v1/turns/{turn.id}/events?after=1-2"
    by_parameter = await rig.client.get(path)
    by_header = await rig.client.get(path, headers={"Last-Event-ID": "1-3"})
    assert by_parameter.content.count(b"content_delta") == 1
    assert by_header.content.count(b"content_delta") == 0


@pytest.mark.parametrize(
    "position", ["1-999", "7-1", "0-9", "2147483647-1", "1-0", "x", "", "1", "01-1", "-1-2"]
)
@pytest.mark.parametrize("has_ended", [False, True])
async def test_an_id_that_was_never_issued_is_refused(
    rig: GatewayRig, position: str, has_ended: bool
) -> None:
    if has_ended and position == "2147483647-1":
        position = "2147483647-7"
    turn = await rig.turn()
    await rig.write(turn, WORDS)
    if has_ended:
        await rig.finish(turn, "".join(WORDS), "1-31")
    answer = await rig.client.get(
        f"/v1/turns/{turn.id}/events", headers={"Last-Event-ID": position}
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "cursor-invalid")


async def test_a_cursor_older_than_the_log_gets_one_snapshot_and_what_follows(
    rig: GatewayRig,
) -> None:
    turn = await rig.turn()
    await rig.write(turn, WORDS[:5])
    copy = Copy()
    await read_until(rig, turn, copy, 5)
    rig.redis.flush()
    await rig.write(turn, WORDS[20:25], n=22)
    following = asyncio.create_task(follow(rig.client, turn.id, copy))
    await until(lambda: rig.gateway.hub.stream_count == 1)
    rig.checkpoint(turn, "".join(WORDS[:18]), "1-19")  # does not reach the first id that is left
    await asyncio.sleep(0)
    rig.checkpoint(turn, "".join(WORDS[:20]), "1-21")
    await until(lambda: len(copy.heard) > 8)
    await rig.write(turn, WORDS[25:], n=27)
    await rig.finish(turn, "".join(WORDS), "1-31")
    await following
    assert copy.text == "".join(WORDS)
    assert copy.names.count("snapshot") == 1
    assert copy.names[-2:] == ["usage", "done"]


async def test_after_expiry_the_stored_answer_and_the_end_come(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, WORDS)
    copy = Copy()
    await read_until(rig, turn, copy, 5)
    await rig.finish(turn, "".join(WORDS), "1-31")
    rig.redis.flush()
    await follow(rig.client, turn.id, copy)
    assert copy.text == "".join(WORDS)
    assert copy.names[-3:] == ["snapshot", "usage", "done"]


async def test_without_redis_the_checkpoint_is_sent_and_the_turn_ends(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, WORDS[:5])
    copy = Copy()
    following = asyncio.create_task(follow(rig.client, turn.id, copy))
    await until(lambda: len(copy.heard) == 7)
    rig.redis.lost()
    rig.checkpoint(turn, "".join(WORDS[:12]), "1-13")
    await until(lambda: copy.text == "".join(WORDS[:12]))
    rig.checkpoint(turn, "".join(WORDS[:20]), "1-21")
    await until(lambda: copy.text == "".join(WORDS[:20]))
    rig.end(turn, "".join(WORDS), "1-31")
    await following
    assert copy.text == "".join(WORDS)
    assert copy.done is not None


async def test_a_stream_goes_on_when_redis_comes_back_empty(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, WORDS[:5])
    copy = Copy()
    following = asyncio.create_task(follow(rig.client, turn.id, copy))
    await until(lambda: len(copy.heard) == 7)
    rig.redis.lost()
    rig.redis.come_back()
    await rig.write(turn, WORDS[5:], n=7)
    await rig.finish(turn, "".join(WORDS), "1-31")
    await following
    assert copy.text == "".join(WORDS)
    assert "snapshot" not in copy.names


async def test_a_lost_last_entry_is_made_from_the_rows(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, WORDS)
    following = asyncio.create_task(follow(rig.client, turn.id))
    await until(lambda: rig.gateway.hub.stream_count == 1)
    rig.end(turn, "".join(WORDS), "1-31")
    copy = await following
    assert copy.names[-2:] == ["usage", "done"]
    assert "snapshot" not in copy.names


async def test_text_that_never_reached_the_stream_comes_as_a_snapshot(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, WORDS[:10])
    following = asyncio.create_task(follow(rig.client, turn.id))
    await until(lambda: rig.gateway.hub.stream_count == 1)
    await rig.finish(turn, "".join(WORDS), "1-31")
    copy = await following
    assert copy.text == "".join(WORDS)
    assert copy.names[-3:] == ["snapshot", "usage", "done"]


async def test_where_more_was_shown_than_stored_the_ids_do_not_go_back(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, WORDS[:3])
    copy = Copy()
    following = asyncio.create_task(follow(rig.client, turn.id, copy))
    await until(lambda: len(copy.heard) == 5)
    await rig.finish(turn, "", None, status="failed", reason="dead_lettered", sha256=None)
    await following
    assert copy.text == ""
    assert copy.names[-4:] == ["snapshot", "usage", "error", "done"]
    ids = [EntryId.parse(heard.id) for heard in copy.heard]
    assert ids == sorted(ids)


async def test_a_failed_turn_says_so(rig: GatewayRig) -> None:
    turn = await rig.turn()
    following = asyncio.create_task(follow(rig.client, turn.id))
    await until(lambda: rig.gateway.hub.stream_count == 1)
    await rig.finish(turn, "", None, status="failed", reason="context_too_large", usage=None)
    copy = await following
    assert copy.names == ["message_started", "error", "done"]
    assert copy.done is not None
    assert (copy.done["status"], copy.done["reason"]) == ("failed", "context_too_large")


async def test_silent_turns_are_asked_for_together(rig: GatewayRig) -> None:
    """Those that are due at one tick; however far apart they began, that is one of three."""

    def asked() -> list[int]:
        return [count for name, count in rig.store.asked if name == "facts"]

    silent = [await rig.turn() for _ in range(12)]
    following = [asyncio.create_task(follow(rig.client, turn.id)) for turn in silent]
    await until(lambda: rig.gateway.hub.stream_count == 12)
    rig.store.asked.clear()
    await until(lambda: sum(asked()) >= 36)
    assert max(asked()) >= 4
    for turn in silent:
        rig.end(turn, "x", "1-2")
    copies = await asyncio.gather(*following)
    assert {copy.text for copy in copies} == {"x"}


async def test_a_reader_that_stalls_is_cut_and_the_other_gets_everything(rig: GatewayRig) -> None:
    turn = await rig.turn()
    port = int(rig.url.rpartition(":")[2])
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    connection.connect(("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1024)
    writer.write(
        f"GET /v1/turns/{turn.id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {rig.key}\r\n\r\n".encode()
    )
    copy = Copy()
    following = asyncio.create_task(follow(rig.client, turn.id, copy))
    await until(lambda: rig.gateway.hub.stream_count == 2)
    await rig.live.append(turn.id, [generating(1)])
    text, highest = "x" * 64_000, 0
    for i in range(120):
        await rig.live.append(turn.id, [content_delta(EntryId(1, 2 + i), text)])
        highest = max(highest, rig.gateway.hub.buffered_bytes)
        while (
            len(copy.heard) < i - 6 and not following.done()
        ):  # as fast as the one who reads, however slow the machine
            await asyncio.sleep(0.001)
    await until(lambda: rig.gateway.hub.stream_count <= 1)
    await rig.finish(turn, text * 120, "1-121")
    await following
    assert len(copy.text) == 120 * 64_000
    assert highest <= 3 * 1024 * 1024
    name = "turnwire_sse_slow_clients_closed_total"
    assert rig.registry.get_sample_value(name) == 1
    writer.close()
    del reader


async def test_the_streams_of_one_key_are_limited() -> None:
    async with gateway_rig(max_streams_per_key=2) as rig:
        turn = await rig.turn()
        following = [asyncio.create_task(follow(rig.client, turn.id)) for _ in range(2)]
        await until(lambda: rig.gateway.hub.stream_count == 2)
        refused = await rig.client.get(f"/v1/turns/{turn.id}/events")
        assert (refused.status_code, refused.json()["code"]) == (429, "quota-exceeded")
        assert refused.headers["ratelimit-policy"] == '"streams";q=2'
        assert int(refused.headers["retry-after"]) > 0
        await rig.finish(turn, "", None)
        await asyncio.gather(*following)
        assert (await rig.client.get(f"/v1/turns/{turn.id}/events")).status_code == 200


async def test_a_revoked_key_ends_its_open_streams(rig: GatewayRig) -> None:
    turn = await rig.turn()
    stream = asyncio.create_task(rig.client.get(f"/v1/turns/{turn.id}/events"))
    await until(lambda: rig.gateway.hub.stream_count == 1)
    del rig.store.keys[hash_api_key(rig.key)]
    answer = await stream
    assert b"done" not in answer.content


async def test_a_client_that_leaves_changes_nothing(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, WORDS[:3])
    await read_until(rig, turn, Copy(), 3)
    await until(lambda: rig.gateway.hub.stream_count == 0)
    assert not rig.redis.listeners
    assert len(rig.ingestion.events) == 2
    assert rig.store.turn_rows[turn.id].status == "generating"


async def test_at_the_end_streams_close_and_clients_go_on_elsewhere(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, WORDS[:10])
    copies = [Copy() for _ in range(4)]
    following = [asyncio.create_task(follow(rig.client, turn.id, copy)) for copy in copies]
    await until(lambda: all(len(copy.heard) == 12 for copy in copies))
    await rig.gateway.drain()
    await asyncio.gather(*following)
    refused = await rig.client.get(f"/v1/turns/{turn.id}/events")
    assert (refused.status_code, refused.json()["code"]) == (503, "admission-rejected")
    await rig.write(turn, WORDS[10:], n=12)
    await rig.finish(turn, "".join(WORDS), "1-31")
    async with gateway_rig(beside=rig) as other:
        for copy in copies:
            await follow(other.client, turn.id, copy)
    assert {copy.text for copy in copies} == {"".join(WORDS)}
    assert {copy.names.count("content_delta") for copy in copies} == {30}


async def test_without_rows_a_stream_waits_and_then_ends(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, WORDS[:10])
    copy = Copy()
    following = asyncio.create_task(follow(rig.client, turn.id, copy))
    await until(lambda: len(copy.heard) == 12)
    rig.store.is_away = True
    await rig.finish(turn, "".join(WORDS), "1-31")  # needs the stored text
    await asyncio.sleep(0)
    rig.store.is_away = False
    await following
    assert copy.text == "".join(WORDS)


async def test_a_turn_with_a_grace_period_is_reported_as_watched(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    async with rig.client.stream(
        "POST",
        f"/v1/conversations/{conversation}/messages",
        json={"content": "Hi", "options": {"cancel_after_s": 5}},
        headers={"Idempotency-Key": "k", "Accept": "text/event-stream"},
    ) as response:
        (turn,) = rig.store.turn_rows.values()
        assert response.status_code == 200
        await _count(rig, turn, 1)
    await _count(rig, turn, 0)


async def test_a_turn_is_watched_until_its_last_watcher_leaves_wherever_they_are(
    rig: GatewayRig,
) -> None:
    turn = await rig.turn()
    watched = replace(turn, options={"cancel_after_s": 5})
    rig.store.turn_rows[turn.id] = watched
    async with gateway_rig(beside=rig) as other:
        here, too, there = [
            asyncio.create_task(follow(gateway.client, turn.id)) for gateway in (rig, rig, other)
        ]
        await until(lambda: rig.gateway.hub.stream_count + other.gateway.hub.stream_count == 3)
        await _count(rig, turn, 2)
        await leave(here)
        await until(lambda: rig.gateway.hub.stream_count == 1)
        assert await rig.live.watchers(turn.id) == 2, "one of two leaves this process"
        await leave(too)
        await _count(rig, turn, 1)
        again = asyncio.create_task(follow(rig.client, turn.id))
        await _count(rig, turn, 2)
        await leave(there)
        await _count(rig, turn, 1)
        await leave(again)
        await _count(rig, turn, 0)


async def leave(following: "asyncio.Task[Copy]") -> None:
    """Drop a client's connection."""
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following


async def _count(rig: GatewayRig, turn: TurnView, expected: int) -> None:
    async def is_reached() -> bool:
        return await rig.live.watchers(turn.id) == expected

    await waiting.until(is_reached, within_s=LIMIT_S)


async def test_a_silent_stream_is_kept_alive() -> None:
    parser = Parser()
    async with gateway_rig(pace=Pace(ping_s=0.05)) as rig:
        turn = await rig.turn()
        async with rig.client.stream("GET", f"/v1/turns/{turn.id}/events") as response:
            async for chunk in response.aiter_raw():
                parser.feed(chunk)
                if parser.comments >= 2:
                    break
    assert parser.last_id == "0-1"


async def test_nothing_starts_by_reading(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.finish(turn, "x", "1-2")
    count = len(rig.ingestion.events)
    for path in ("", "/events", "/plan"):
        await rig.client.get(f"/v1/turns/{turn.id}{path}")
    assert len(rig.ingestion.events) == count


async def test_a_store_that_is_away_is_a_problem_and_no_broken_stream(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.client.get(f"/v1/turns/{turn.id}")
    rig.store.is_away = True
    answer: httpx.Response = await rig.client.get(f"/v1/turns/{turn.id}/events")
    assert (answer.status_code, answer.json()["code"]) == (503, "dependency-unavailable")


async def test_without_room_for_a_stream_nothing_is_asked_for() -> None:
    async with gateway_rig(max_streams_per_key=1) as rig:
        turn = await rig.turn()
        following = asyncio.create_task(follow(rig.client, turn.id))
        await until(lambda: rig.gateway.hub.stream_count == 1)
        count = len(rig.ingestion.events)
        refused = await rig.client.post(
            f"/v1/conversations/{turn.conversation_id}/messages",
            json={"content": "Hi"},
            headers={"Idempotency-Key": "k", "Accept": "text/event-stream"},
        )
        assert (refused.status_code, refused.json()["code"]) == (429, "quota-exceeded")
        assert len(rig.ingestion.events) == count
        await rig.finish(turn, "", None)
        await following


async def test_asking_for_the_head_of_a_stream_does_not_wait_for_its_end(rig: GatewayRig) -> None:
    turn = await rig.turn()
    answer = await rig.client.head(f"/v1/turns/{turn.id}/events")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream"
