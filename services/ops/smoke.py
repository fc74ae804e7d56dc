"""The whole path with nobody watching: two questions to the real model, compared with the rows."""

import asyncio
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.local.ports import pick_port
from services.ops.answer import Answer
from services.ops.data_folder import DataFolder
from services.ops.failures import CommandFailed, ExitCode
from services.ops.gateway import Gateway
from services.ops.progress import Progress
from services.ops.running import Turnwire
from services.ops.screen import Screen, harmless
from services.ops.showing import plan_lines, turn_lines

# The demo model answers both in one sentence.
QUESTIONS = ("What is the capital of France? Answer with one word.", "And of Italy?")
OPTIONS = {"temperature": 0}  # the same short answers in every run
ANSWER_BOUND_S = 180.0  # a small model on two busy cores; it takes two seconds on idle ones
LOG_TAIL_LINES = 30


@dataclass(frozen=True, slots=True)
class Answered:
    """One turn of the smoke run, as streamed and as told afterwards."""

    answer: Answer
    turn: dict[str, Any]
    plan: dict[str, Any]
    stored: str

    def wrongs(self) -> list[str]:
        """What is not as promised; empty if all is well."""
        found = []
        if self.turn["status"] != "completed":
            found.append(f"the turn is {self.turn['status']} ({self.turn['reason']})")
        if not self.stored.strip():
            found.append("the answer is empty")
        if self.stored != self.answer.text:
            found.append("what was streamed is not what is stored")
        if (difference := self.answer.differs()) is not None:
            found.append(f"the stream does not fit its own end: {difference}")
        return [f"turn {self.turn['id']}: {wrong}" for wrong in found]


async def smoke(screen: Screen) -> None:
    """Start the stack in a folder of its own, ask two questions, compare, stop everything.

    Raises:
        CommandFailed: Something was not as promised.
        LocalStackError: Something did not come up.
    """
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    if task is not None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
    with tempfile.TemporaryDirectory(prefix="turnwire-smoke-") as path:
        folder = DataFolder(Path(path) / "data")
        progress = Progress(screen)
        port = pick_port()
        turnwire = Turnwire(folder, port=port, environ=dict(os.environ), progress=progress)
        try:
            async with progress.shown(), turnwire:
                address = await turnwire.start()
                async with Gateway.opened(address.url, address.api_key) as gateway:
                    answered = await _converse(screen, gateway)
        except (Exception, asyncio.CancelledError):
            _show_logs(screen, folder)
            raise
    _judge(screen, answered)


async def _converse(screen: Screen, gateway: Gateway) -> list[Answered]:
    conversation = await gateway.create_conversation(str(uuid.uuid4()))
    return [await _ask(screen, gateway, conversation["id"], question) for question in QUESTIONS]


async def _ask(screen: Screen, gateway: Gateway, conversation: str, question: str) -> Answered:
    _print(screen, f"\n> {question}\n")
    try:
        async with asyncio.timeout(ANSWER_BOUND_S):
            accepted = await gateway.post(
                conversation, question, str(uuid.uuid4()), options=OPTIONS
            )
            answer = await _streamed(screen, gateway, accepted["turn_id"])
    except TimeoutError:
        msg = f"There was no whole answer within {ANSWER_BOUND_S:.0f} s; see the logs above."
        raise CommandFailed(msg) from None
    turn = await gateway.turn(accepted["turn_id"])
    plan = await gateway.plan(accepted["turn_id"])
    stored = {message["id"]: message["content"] for message in await gateway.messages(conversation)}
    if not screen.as_json:
        for line in (*turn_lines(screen, turn), "", *plan_lines(screen, plan)):
            _print(screen, line + "\n")
    return Answered(answer, turn, plan, stored.get(accepted["assistant_message_id"], ""))


async def _streamed(screen: Screen, gateway: Gateway, turn_id: str) -> Answer:
    answer = Answer()
    async for event in gateway.events(turn_id, note=screen.say):
        _print(screen, harmless(answer.take(event)))
    _print(screen, "\n\n")
    return answer


def wrongs_of(first: Answered, second: Answered) -> list[str]:
    """What is not as promised of two turns of one conversation; empty if all is well."""
    found = [*first.wrongs(), *second.wrongs()]
    wanted = {first.turn["user_message_id"], first.turn["assistant_message_id"]}
    planned = {id_ for step in second.plan["steps"] for id_ in step["plan"]["message_ids"]}
    if missing := sorted(wanted - planned):
        found.append(f"the second plan lacks messages of the first turn: {', '.join(missing)}")
    return found


def _judge(screen: Screen, answered: Sequence[Answered]) -> None:
    first, second = answered
    if wrongs := wrongs_of(first, second):
        ended_well = all(one.turn["status"] == "completed" for one in answered)
        code = ExitCode.INVARIANT if ended_well else ExitCode.FAILED
        msg = f"The smoke run failed: {'; '.join(wrongs)}."
        raise CommandFailed(msg, exit_code=code)
    document = {
        "ok": True,
        "turns": [{"turn": one.turn, "plan": one.plan, "text": one.stored} for one in answered],
    }
    line = "Both answers completed, equal what is stored, and the second was given the first."
    screen.result(document, ["", line])


def _show_logs(screen: Screen, folder: DataFolder) -> None:
    """The ends of the services' logs: the folder is gone after this."""
    for path in sorted((folder.path / "logs").glob("*.log")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        screen.say(f"\nThe end of {path.name}:")
        for line in lines[-LOG_TAIL_LINES:]:
            screen.say(f"  {harmless(line)}")


def _print(screen: Screen, text: str) -> None:
    if text and not screen.as_json:
        screen.out(text, end="")
    sys.stdout.flush()
