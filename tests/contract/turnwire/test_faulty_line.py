"""The line itself: what it does must not depend on when Python collects garbage."""

import asyncio
import gc

from tests.contract.turnwire.faulty_line import faulty_line


async def test_a_connection_whose_client_left_is_ended_by_the_line_and_not_by_chance() -> None:
    """asyncio holds a stream's reader weakly: a task that nobody else holds can vanish half-way."""
    served = asyncio.Event()
    ended = asyncio.Event()

    async def answer_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.set()
        await reader.read()
        writer.close()
        ended.set()

    server = await asyncio.start_server(answer_slowly, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, asyncio.timeout(10), faulty_line(f"http://127.0.0.1:{port}") as line:
        _, writer = await asyncio.open_connection("127.0.0.1", int(line.url.rpartition(":")[2]))
        await served.wait()
        writer.close()
        await writer.wait_closed()
        # Behind a second connection the loop has seen that the first one's client is gone.
        _, second = await asyncio.open_connection("127.0.0.1", int(line.url.rpartition(":")[2]))
        while line.connections < 2:
            await asyncio.sleep(0.001)
        gc.collect()
        assert line.open_now == 2
        assert not ended.is_set()
        second.close()
        await second.wait_closed()
    async with asyncio.timeout(10):
        await ended.wait()
