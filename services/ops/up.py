"""Runs Turnwire in the foreground until it is told to stop."""

import asyncio
import os
import shlex
import signal
from dataclasses import asdict

from services.ops.data_folder import DataFolder
from services.ops.progress import Progress
from services.ops.running import Address, Turnwire
from services.ops.screen import Screen, duration

QUESTION = "What can I do with a bicycle?"


async def up(screen: Screen, folder: DataFolder, *, port: int, shows_key: bool) -> None:
    """Start everything, say where it is, wait for SIGINT or SIGTERM, stop everything.

    Args:
        shows_key: Print the API key, not only the file that keeps it.

    Raises:
        LocalStackError: Something did not come up; all was stopped again.
        ChatError: The same.
    """
    asked_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked_to_stop.set)
    progress = Progress(screen)
    began = loop.time()
    turnwire = Turnwire(folder, port=port, environ=dict(os.environ), progress=progress)
    async with progress.shown(), turnwire:
        address = await _started(turnwire, asked_to_stop)
        if address is None:
            screen.say("Stopped before it was ready.")
            return
        screen.say()
        _tell(screen, address, shows_key=shows_key, seconds=loop.time() - began)
        await asked_to_stop.wait()
        screen.say("\nStopping.")
    screen.say("Stopped. Your conversations are kept; start again to go on.")


async def _started(turnwire: Turnwire, asked_to_stop: asyncio.Event) -> Address | None:
    """The address once everything is up; None if a signal came first."""
    starting = asyncio.create_task(turnwire.start(), name="start")
    stopping = asyncio.create_task(asked_to_stop.wait(), name="stop")
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
    return None


def _tell(screen: Screen, address: Address, *, shows_key: bool, seconds: float) -> None:
    document = {**asdict(address), "page": address.page}
    if not shows_key:
        del document["api_key"]  # it is in the file; a log of this output must not hold it
    key = address.api_key if shows_key else f"in {address.key_path}"
    lines = [
        f"Turnwire is ready after {duration(seconds)}.",
        "",
        f"  chat page  {address.page}",
        f"  operator   {address.url}/ui/ops",
        f"  API key    {key}",
    ]
    if shows_key:
        lines.append(f"             kept in {address.key_path}, readable for you alone")
    lines += [
        "",
        "Ask something from another terminal; the answer streams:",
        "",
        *(f"  {line}" for line in curl(address)),
        "",
        "Ctrl-C stops everything that was started here.",
    ]
    screen.result(document, lines)


def curl(address: Address) -> list[str]:
    """Lines of a shell command that posts a question and shows the stream of its answer.

    It makes a conversation of its own, reads the key from its file, and holds no secret.
    """
    key = f"Authorization: Bearer $(cat {shlex.quote(str(address.key_path))})"
    made = (
        f'id=$(curl -sS -X POST {address.url}/v1/conversations -H "{key}" '
        "-H 'Content-Type: application/json' -d '{}' "
        """| sed 's/.*"id": *"\\([^"]*\\)".*/\\1/')"""
    )
    asked = (
        f'curl -sSN {address.url}/v1/conversations/$id/messages -H "{key}" '
        "-H \"Idempotency-Key: $(date +%s%N)\" -H 'Content-Type: application/json' "
        f"-H 'Accept: text/event-stream' -d '{{\"content\": \"{QUESTION}\"}}'"
    )
    return [f"{made} && \\", asked]
