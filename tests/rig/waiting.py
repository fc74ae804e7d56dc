"""Waiting on a condition with a time limit; no test sleeps for luck."""

import asyncio
from collections.abc import Awaitable, Callable

LOOK_EVERY_S = 0.02


async def until(condition: Callable[[], Awaitable[bool]], *, within_s: float = 30.0) -> None:
    """Look again and again until ``condition`` holds.

    Raises:
        TimeoutError: It did not hold within ``within_s`` seconds.
    """
    async with asyncio.timeout(within_s):
        while not await condition():
            await asyncio.sleep(LOOK_EVERY_S)
