"""The one place that may catch everything: a failure becomes a value that somebody decides on."""

import asyncio
from collections.abc import Awaitable


class StrayCancellation(Exception):
    """Something inside the work was cancelled, though nobody cancelled the work itself."""


async def attempt(work: Awaitable[None]) -> Exception | None:
    """Await ``work``; its error, or None.

    A cancellation of the running task goes through. One that arrives without it (aiokafka's and
    redis' internals do that when a connection dies) is an error like any other: let through, it
    would end the consumer silently.
    """
    try:
        await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return StrayCancellation(str(error))
    except Exception as error:  # noqa: BLE001 -- the loop must outlive every handler
        return error
    return None
