"""Waiting on a condition with a time limit, never for luck."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

POLL_S = 0.02  # short against the fastest start (0.1 s), and under 1 % of a core while waiting


async def until(condition: Callable[[], bool], *, timeout_s: float, poll_s: float = POLL_S) -> bool:
    """Whether ``condition`` became true within ``timeout_s`` seconds; judged at least once."""
    deadline = monotonic() + timeout_s
    while not condition():
        if monotonic() >= deadline:
            return False
        await asyncio.sleep(poll_s)
    return True


async def until_async(
    condition: Callable[[], Awaitable[bool]], *, timeout_s: float, poll_s: float = POLL_S
) -> bool:
    """As ``until``, for a condition that itself waits; such a condition bounds its own wait."""
    deadline = monotonic() + timeout_s
    while not await condition():
        if monotonic() >= deadline:
            return False
        await asyncio.sleep(poll_s)
    return True


async def http_status(port: int, path: str, *, timeout_s: float = 2.0) -> int | None:
    """The status of ``GET path`` on 127.0.0.1, or None while nobody answers in time.

    Args:
        timeout_s: For connecting, asking and the first line together.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
                writer.write(request.encode())
                first_line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    fields = first_line.split()
    return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else None
