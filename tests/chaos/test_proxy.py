"""The proxy: what it passes on unharmed, and what its faults do to real connections."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from libs.errors import StoreUnavailable
from libs.postgres import Database
from tests.chaos.proxy import MAX_HELD_BYTES, Proxy
from tests.rig.waiting import until

Writer: TypeAlias = asyncio.StreamWriter

BIG = bytes(range(256)) * 16_384  # 4 MiB, more than every buffer on the way


class Echo:
    """A server that sends back what it gets, and says when a connection ended."""

    def __init__(self) -> None:
        self.port = 0
        self.ended = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "Echo":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.ended += 1
            writer.close()


@asynccontextmanager
async def proxied(port: int) -> AsyncIterator[Proxy]:
    proxy = Proxy("127.0.0.1", port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


@asynccontextmanager
async def connected(proxy: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, Writer]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ask(reader: asyncio.StreamReader, writer: Writer, said: bytes) -> bytes:
    writer.write(said)
    async with asyncio.timeout(5):
        return await reader.readexactly(len(said))


async def test_bytes_pass_both_ways_unchanged_and_are_counted() -> None:
    async with Echo() as echo, proxied(echo.port) as proxy, connected(proxy) as (reader, writer):
        writer.write(BIG)
        writer.write_eof()
        async with asyncio.timeout(20):
            back = await reader.read(-1)
    assert back == BIG
    assert proxy.counters.bytes == 2 * len(BIG)
    assert (proxy.counters.connections, proxy.counters.cuts, proxy.open) == (1, 0, 0)


async def test_a_delay_holds_every_piece_each_way_and_keeps_the_order() -> None:
    async with Echo() as echo, proxied(echo.port) as proxy, connected(proxy) as (reader, writer):
        await ask(reader, writer, b"warm")
        proxy.delay(60, jitter_ms=40)
        began = time.monotonic()
        assert await ask(reader, writer, b"one") == b"one"
        took_s = time.monotonic() - began
        pieces = [b"%05d" % n for n in range(300)]
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            back = await reader.readexactly(5 * len(pieces))
        await proxy.restore()
        began = time.monotonic()
        await ask(reader, writer, b"quick")
        quick_s = time.monotonic() - began
    assert took_s >= 0.12
    assert back == b"".join(pieces)
    assert quick_s < 0.06


async def test_a_delayed_stream_is_bounded_and_complete() -> None:
    async with Echo() as echo, proxied(echo.port) as proxy, connected(proxy) as (reader, writer):
        proxy.delay(20)
        writer.write(BIG)
        writer.write_eof()
        async with asyncio.timeout(20):
            back = await reader.readexactly(MAX_HELD_BYTES)
            held = [
                end._held_bytes for link in proxy._links for end in (link.client, link.upstream)
            ]
            back += await reader.read(-1)
    assert back == BIG
    assert max(held) < 2 * MAX_HELD_BYTES


async def test_a_cut_resets_both_ends() -> None:
    async with Echo() as echo, proxied(echo.port) as proxy, connected(proxy) as (reader, writer):
        await ask(reader, writer, b"here")
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            await ask(reader, writer, b"gone")

        async def has_ended() -> bool:
            return echo.ended == 1

        await until(has_ended, within_s=5)
        async with connected(proxy) as again:
            assert await ask(*again, b"again") == b"again"
    assert proxy.counters.cuts == 1


async def test_a_black_hole_accepts_and_swallows_until_it_is_closed() -> None:
    async with Echo() as echo, proxied(echo.port) as proxy, connected(proxy) as (reader, writer):
        await ask(reader, writer, b"before")
        proxy.blackhole()
        writer.write(b"late")
        async with connected(proxy) as (new_reader, new_writer):
            new_writer.write(b"new")
            for silent in (reader, new_reader):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await silent.read(1)
            passed = proxy.counters.bytes
            await proxy.restore()
            async with asyncio.timeout(5):
                assert await reader.readexactly(4) == b"late"
                assert await new_reader.readexactly(3) == b"new"
    assert passed == 2 * len(b"before")


async def test_what_was_sent_into_a_black_hole_is_lost_when_it_is_cut() -> None:
    async with Echo() as echo, proxied(echo.port) as proxy, connected(proxy) as (reader, writer):
        await ask(reader, writer, b"before")
        proxy.blackhole()
        writer.write(b"lost")
        await writer.drain()
        proxy.cut()
        await proxy.restore()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
    assert proxy.counters.bytes == 2 * len(b"before")


async def test_a_refusing_proxy_has_nobody_at_its_port_and_comes_back_there() -> None:
    async with Echo() as echo, proxied(echo.port) as proxy, connected(proxy) as (reader, writer):
        await ask(reader, writer, b"here")
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        await proxy.restore()
        async with connected(proxy) as again:
            assert await ask(*again, b"back") == b"back"


async def test_a_part_that_is_not_there_looks_like_a_reset() -> None:
    async with Echo() as echo:
        port = echo.port
    async with proxied(port) as proxy, connected(proxy) as (reader, _):
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(5):
                await reader.read(1)


async def test_a_dropped_reply_is_lost_after_its_request_was_delivered() -> None:
    async with Echo() as echo, proxied(echo.port) as proxy, connected(proxy) as (reader, writer):
        await ask(reader, writer, b"one")
        proxy.drop_next_reply()
        with pytest.raises(ConnectionResetError):
            await ask(reader, writer, b"two")
    assert proxy.counters.bytes == 2 * len(b"one") + len(b"two")
    assert proxy.counters.dropped_replies == 1


# Postgres


def through(proxy: Proxy, url: str) -> str:
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{proxy.port}"))


@asynccontextmanager
async def before(url: str) -> AsyncIterator[Proxy]:
    """A proxy before the database of that URL."""
    parts = urlsplit(url)
    proxy = Proxy(parts.hostname or "", parts.port or 0)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


async def count(url: str) -> int:
    async with await psycopg.AsyncConnection.connect(url) as direct:
        row = await (await direct.execute("select count(*) from marks")).fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture
async def marks_url(empty_database_url: str) -> str:
    async with await psycopg.AsyncConnection.connect(empty_database_url) as direct:
        await direct.execute("create table marks (n int)")
    return empty_database_url


@pytest.mark.postgres
async def test_a_commit_whose_reply_is_dropped_took_effect_and_its_client_does_not_know(
    marks_url: str,
) -> None:
    async with before(marks_url) as proxy:
        client = await psycopg.AsyncConnection.connect(through(proxy, marks_url))
        await client.execute("insert into marks values (1)")
        proxy.drop_next_commit_reply()
        with pytest.raises(psycopg.OperationalError):
            await client.commit()
        assert client.closed
        assert await count(marks_url) == 1
        assert proxy.counters.dropped_replies == 1

        async with await psycopg.AsyncConnection.connect(through(proxy, marks_url)) as again:
            await again.execute("insert into marks values (2)")
    assert await count(marks_url) == 2


@pytest.mark.postgres
async def test_the_commit_of_a_pipeline_is_found_and_others_go_on(marks_url: str) -> None:
    """Our own pool sends the last statements and the COMMIT in one piece."""
    async with before(marks_url) as proxy:
        database = await Database.open(through(proxy, marks_url), schema="public", size=2)
        insert = "insert into marks values (%(n)s::int)"
        try:
            proxy.drop_next_commit_reply()
            with pytest.raises(StoreUnavailable):
                await database.fetch(insert, {"n": 1})
            assert await count(marks_url) == 1
            await database.fetch(insert, {"n": 2})
        finally:
            await database.close()
    assert await count(marks_url) == 2
    assert proxy.counters.dropped_replies == 1


@pytest.mark.postgres
async def test_a_rollback_is_no_commit(marks_url: str) -> None:
    async with before(marks_url) as proxy:
        async with await psycopg.AsyncConnection.connect(through(proxy, marks_url)) as client:
            proxy.drop_next_commit_reply()
            await client.execute("insert into marks values (1)")
            await client.rollback()
        assert proxy.counters.dropped_replies == 0
    assert await count(marks_url) == 0


@pytest.mark.parametrize("split", range(1, 12))
async def test_a_commit_reply_in_two_pieces_is_found(split: int) -> None:
    reply = b"\x00" * 7 + b"C\x00\x00\x00\x0bCOMMIT\x00" + b"Z\x00\x00\x00\x05I"
    async with Echo() as echo, proxied(echo.port) as proxy, connected(proxy) as (reader, writer):
        proxy.drop_next_commit_reply()
        assert await ask(reader, writer, reply[: 7 + split]) == reply[: 7 + split]
        with pytest.raises(ConnectionResetError):
            await ask(reader, writer, reply[7 + split :])
    assert proxy.counters.dropped_replies == 1
