"""A conversation survives a gateway that cuts, hesitates or refuses."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from services.ops.failures import CommandFailed, ExitCode
from services.ops.gateway import Gateway, GatewayAway

KEY = "tw_key"
TURN = "11111111-2222-3333-4444-555555555555"


def frame(id_: str, event: str, **data: object) -> bytes:
    return f"id: {id_}\nevent: {event}\ndata: {json.dumps(data)}\n\n".encode()


def answer(status: int, body: object = None, *, kind: str = "application/json") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    # Without a length the body ends where the connection does: cut is cut.
    length = "" if kind == "text/event-stream" else f"Content-Length: {len(raw)}\r\n"
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{length}Connection: close\r\n\r\n"
    return head.encode() + raw


def cut(*frames: bytes) -> bytes:
    """A stream whose connection breaks behind the frames, in the middle of a chunk."""
    raw = b"".join(frames)
    head = "HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode() + f"{len(raw):x}\r\n".encode() + raw + b"\r\nff\r\n"


@dataclass
class Script:
    """Answers requests in order, one a connection, and remembers them."""

    url: str = ""
    answers: list[bytes] = field(default_factory=list)
    asked: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.asked.append((first.rpartition(" ")[0], headers, body))
        writer.write(self.answers.pop(0))
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@pytest.fixture
async def script() -> AsyncIterator[Script]:
    script = Script()
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield script


async def ids_of(script: Script, notes: list[str]) -> Sequence[str]:
    async with Gateway.opened(script.url, KEY) as gateway:
        return [event.id async for event in gateway.events(TURN, note=notes.append)]


async def test_a_stream_that_is_cut_is_read_on_behind_its_last_entry(script: Script) -> None:
    notes: list[str] = []
    script.answers = [
        cut(frame("0-1", "message_started"), frame("1-2", "content_delta", text="a")),
        answer(503),
        answer(200, frame("1-3", "content_delta", text="b"), kind="text/event-stream"),
        answer(200, frame("2147483647-1", "done", status="completed"), kind="text/event-stream"),
    ]
    assert await ids_of(script, notes) == ["0-1", "1-2", "1-3", "2147483647-1"]
    assert [h.get("last-event-id") for _, h, _ in script.asked] == [None, "1-2", "1-2", "1-3"]
    assert notes == ["the connection was lost; reading on where it stopped"]


async def test_a_turn_that_has_no_more_to_tell_ends_the_stream(script: Script) -> None:
    script.answers = [answer(204, b"")]
    assert await ids_of(script, []) == []


async def test_a_stream_that_is_refused_is_not_asked_for_again(script: Script) -> None:
    script.answers = [answer(404, {"title": "No such thing", "detail": "Check the id."})]
    with pytest.raises(CommandFailed, match=r"^No such thing\. Check the id\.$"):
        await ids_of(script, [])
    assert len(script.asked) == 1


async def test_a_question_is_asked_again_with_the_same_key(script: Script) -> None:
    script.answers = [answer(503, {"title": "Away"}), answer(202, {"turn_id": TURN})]
    async with Gateway.opened(script.url, KEY) as gateway:
        turn = await gateway.post(TURN, "Hello", "key-1", options={"temperature": 0})
    assert turn == {"turn_id": TURN}
    assert [(h["idempotency-key"], json.loads(b)) for _, h, b in script.asked] == [
        ("key-1", {"content": "Hello", "options": {"temperature": 0}})
    ] * 2
    assert {h["authorization"] for _, h, _ in script.asked} == {f"Bearer {KEY}"}


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, ExitCode.USAGE), (409, ExitCode.CONFLICT), (422, ExitCode.FAILED)],
)
async def test_a_problem_is_told_with_its_request(
    script: Script, status: int, code: ExitCode
) -> None:
    problem = {"title": "What happened", "detail": "Why, and what to do.", "request_id": "r-1"}
    script.answers = [answer(status, problem)]
    async with Gateway.opened(script.url, KEY) as gateway:
        with pytest.raises(CommandFailed) as failed:
            await gateway.turn(TURN)
    assert str(failed.value) == "What happened. Why, and what to do. Request r-1."
    assert failed.value.exit_code is code


async def test_an_answer_that_is_no_problem_document_is_told_by_its_status(
    script: Script,
) -> None:
    script.answers = [answer(500, b"<html>", kind="text/html")]
    async with Gateway.opened(script.url, KEY) as gateway:
        with pytest.raises(CommandFailed, match="answered 500 without a reason"):
            await gateway.plan(TURN)


async def test_all_pages_of_a_list_are_read(script: Script) -> None:
    pages = [
        {"data": [{"id": "a"}], "last_id": "a", "has_more": True},
        {"data": [{"id": "b"}], "last_id": "b", "has_more": False},
    ]
    script.answers = [answer(200, page) for page in pages]
    async with Gateway.opened(script.url, KEY) as gateway:
        assert await gateway.messages(TURN) == [{"id": "a"}, {"id": "b"}]
    assert "after=a" in script.asked[1][0]


async def test_a_gateway_that_was_there_is_waited_for(script: Script) -> None:
    script.answers = [answer(200, {"id": TURN}), b"", answer(200, {"id": TURN})]
    async with Gateway.opened(script.url, KEY) as gateway:
        await gateway.turn(TURN)
        assert await gateway.turn(TURN) == {"id": TURN}
    assert len(script.asked) == 3


async def test_a_gateway_that_is_not_there_is_told_at_once() -> None:
    # Port 9 is that of discard, where nobody listens.
    async with Gateway.opened("http://127.0.0.1:9", KEY) as gateway:
        with pytest.raises(GatewayAway, match="turnwire up"):
            await gateway.turn(TURN)
