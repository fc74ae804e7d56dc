"""The adapter over real HTTP, against a server that does whatever it is told."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime

import pytest
from pydantic import SecretStr

from services.llm_gateway.core.completions import Done, Failed, Finished, Part, TextDelta
from services.llm_gateway.core.failures import Failure, FailureKind
from services.llm_gateway.ports import ProviderFailed
from services.llm_gateway.providers.openai_compatible import OpenAiCompatible, request_body
from tests.rig.llm_worker import until
from tests.rig.parts import pick_port
from tests.rig.provider import Rule, ScriptedProvider, running_provider

PAYLOAD = '{"messages":[{"content":"東京 🗼","role":"user"}],"model":"m"}'.encode()
SECRET = "sk-not-for-logs"


@asynccontextmanager
async def connected(
    *rules: Rule,
) -> AsyncIterator[tuple[ScriptedProvider, OpenAiCompatible]]:
    async with running_provider(*rules) as server, adapter(server.base_url) as provider:
        yield server, provider


def adapter(base_url: str) -> AbstractAsyncContextManager[OpenAiCompatible]:
    return OpenAiCompatible.open(
        base_url=base_url, api_key=SecretStr(SECRET), now=lambda: datetime.now(UTC)
    )


async def read(provider: OpenAiCompatible) -> list[Part]:
    async with provider.stream(PAYLOAD) as packets:
        return [part async for parts in packets for part in parts]


async def failure_of(provider: OpenAiCompatible) -> Failure:
    with pytest.raises(ProviderFailed) as caught:
        await read(provider)
    return caught.value.failure


def text_of(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextDelta))


async def test_the_payload_arrives_unchanged_but_for_transport_fields() -> None:
    async with connected() as (server, provider):
        await read(provider)

    [request] = server.requests
    assert request.body.startswith(PAYLOAD[:-1])
    assert request.json == json.loads(PAYLOAD) | {
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert request.authorized


def test_transport_fields_fit_any_object_and_nothing_else() -> None:
    assert json.loads(request_body(b"{}", include_usage=False)) == {"stream": True}
    with pytest.raises(ValueError, match="JSON object"):
        request_body(b"[]", include_usage=False)


async def test_the_key_is_in_no_error() -> None:
    async with connected(Rule(status=401, error={"message": SECRET, "code": SECRET + "!"})) as (
        _,
        provider,
    ):
        with pytest.raises(ProviderFailed) as caught:
            await read(provider)

    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.failure)


async def test_connections_are_used_again_after_a_whole_answer() -> None:
    async with connected() as (server, provider):
        for _ in range(5):
            await read(provider)
        assert len(server.links) == 1


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
async def test_a_character_cut_anywhere_arrives_whole(line_end: str) -> None:
    rule = Rule(
        deltas=("東京", "🗼", "é\n\ndata: x"), byte_by_byte=True, cut_pause_ms=0, line_end=line_end
    )
    async with connected(rule) as (_, provider):
        assert text_of(await read(provider)) == "東京🗼é\n\ndata: x"


async def test_packets_that_end_inside_a_character_are_joined() -> None:
    raw = 'data: {"choices":[{"delta":{"content":"🗼"}}]}\n\ndata: [DONE]\n\n'.encode()
    start = raw.index("🗼".encode())
    for cut in range(start, start + 5):
        rule = Rule(raw_body_b64=base64.b64encode(raw).decode(), cuts=(cut,), cut_pause_ms=2)
        async with connected(rule) as (_, provider):
            assert await read(provider) == [TextDelta("🗼"), Done()]


@pytest.mark.parametrize("text", ["é", "夜", "🗼", "👨\u200d👩\u200d👧"])
async def test_a_stream_that_ends_inside_a_character_shows_no_half_of_it(text: str) -> None:
    first = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    second = f'data: {{"choices":[{{"delta":{{"content":"{text}"}}}}]}}\n\n'.encode()
    start = second.index(text.encode())
    for cut in range(start + 1, start + len(text.encode())):
        raw = base64.b64encode(first + second[:cut]).decode()
        async with connected(Rule(raw_body_b64=raw)) as (_, provider):
            assert await read(provider) == [TextDelta("a")]


async def test_a_stream_that_just_ends_has_no_end() -> None:
    async with connected(Rule(deltas=("a", "b", "c"), end_after=2)) as (_, provider):
        assert await read(provider) == [TextDelta("a"), TextDelta("b")]


async def test_an_end_marker_is_not_needed_after_a_finish_reason() -> None:
    async with connected(Rule(deltas=("a",), done=False, usage=False)) as (_, provider):
        assert await read(provider) == [TextDelta("a"), Finished("stop")]


async def test_an_error_object_in_the_stream_is_told_as_a_part() -> None:
    rule = Rule(deltas=("a", "b"), error_after=1, error={"code": "rate_limit_exceeded"})
    async with connected(rule) as (_, provider):
        parts = await read(provider)

    assert parts[:2] == [
        TextDelta("a"),
        Failed(Failure(FailureKind.THROTTLED, None, "rate_limit_exceeded")),
    ]


async def test_how_long_to_wait_is_read_from_the_answer() -> None:
    async with connected(Rule(status=429, headers={"Retry-After": "7"})) as (_, provider):
        assert (await failure_of(provider)).retry_after_s == 7.0


async def test_context_length_is_recognised_by_its_code() -> None:
    rule = Rule(status=400, error={"message": "too long", "code": "context_length_exceeded"})
    async with connected(rule) as (_, provider):
        assert (await failure_of(provider)).kind == FailureKind.CONTEXT_LENGTH


async def test_a_closed_port_is_a_refusal() -> None:
    async with adapter(f"http://127.0.0.1:{pick_port()}/v1") as provider:
        assert (await failure_of(provider)).kind == FailureKind.REFUSED


async def test_a_reset_before_the_first_byte_is_a_cut() -> None:
    async with connected(Rule(reset_at_byte=0)) as (_, provider):
        assert (await failure_of(provider)).kind == FailureKind.CUT


async def test_a_redirect_is_not_followed_with_the_key() -> None:
    rule = Rule(status=302, headers={"Location": "http://127.0.0.1:9/v1/chat/completions"})
    async with connected(rule) as (_, provider):
        assert (await failure_of(provider)).kind == FailureKind.BAD_REQUEST


async def test_leaving_early_closes_the_provider_s_connection_within_a_second() -> None:
    async with connected(Rule(deltas=("a",), never_ends=True, delay_ms=5)) as (server, provider):
        async with provider.stream(PAYLOAD) as packets:
            await anext(packets)
        left_at = asyncio.get_running_loop().time()
        await until(lambda: server.requests[0].closed_by_client, "the connection is closed")

    assert asyncio.get_running_loop().time() - left_at < 1.0


async def test_a_cancelled_reader_closes_the_provider_s_connection() -> None:
    async with connected(Rule(hang_after=0)) as (server, provider):
        reading = asyncio.create_task(read(provider))
        await until(lambda: bool(server.requests), "the request arrived")
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await until(lambda: server.requests[0].closed_by_client, "the connection is closed")


async def test_an_event_beyond_all_bounds_ends_the_answer() -> None:
    raw = b"data: " + b"x" * (1024 * 1024 + 10)
    async with connected(Rule(raw_body_b64=base64.b64encode(raw).decode())) as (_, provider):
        assert (await failure_of(provider)).kind == FailureKind.MALFORMED


async def test_a_quarter_of_a_megabyte_comes_back_as_it_went() -> None:
    text = "é🗼" * 43_690
    payload = json.dumps(
        {"messages": [{"role": "user", "content": text}]}, ensure_ascii=False
    ).encode()
    async with (
        connected(Rule(echo=True, echo_chars=1_000)) as (server, provider),
        provider.stream(payload) as packets,
    ):
        parts = [part async for packet in packets for part in packet]

    assert text_of(parts) == text
    assert server.requests[0].last_user_message == text


async def test_an_error_that_comes_in_two_packets_is_read_whole() -> None:
    error = b'{"error": {"message": "m", "code": "context_length_exceeded"}}'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(error))
        writer.write(error[:20])
        await writer.drain()
        with contextlib.suppress(TimeoutError):  # two packets, not one
            async with asyncio.timeout(0.05):
                await reader.read()
        writer.write(error[20:])
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with adapter(f"http://127.0.0.1:{port}/v1") as provider:
            failure = await failure_of(provider)

    assert (failure.kind, failure.code) == (
        FailureKind.CONTEXT_LENGTH,
        "context_length_exceeded",
    )
