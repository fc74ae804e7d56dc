"""A conversation in the terminal: asks, shows the answer as it comes, reads on after a cut."""

import asyncio
import sys
import uuid
from dataclasses import dataclass

from services.ops.answer import Answer
from services.ops.failures import CommandFailed
from services.ops.gateway import Gateway
from services.ops.screen import Screen, duration, harmless, painted

PROMPT = "> "
SHOWN_OF_BEFORE = 6  # messages of a resumed conversation that are shown again
TERMINAL = frozenset({"completed", "partial", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class ChatTarget:
    """Whom to talk to."""

    url: str
    key: str
    resume: str | None = None


def chat(screen: Screen, target: ChatTarget) -> None:
    """Read questions from stdin until it ends; each answer streams to stdout.

    Raises:
        CommandFailed: The gateway refused.
        GatewayAway: It does not answer.
    """
    with asyncio.Runner() as runner:
        talk = Talk(screen, target)
        try:
            runner.run(talk.open())
            while (question := _next_question(screen)) is not None:
                if question.strip() and not _ask(runner, talk, question):
                    break
        finally:
            runner.run(talk.close())
            if talk.conversation_id:
                screen.say(f"\nGo on with `turnwire chat --resume {talk.conversation_id}`.")


def _ask(runner: asyncio.Runner, talk: "Talk", question: str) -> bool:
    """Whether the person is still there at the end of the answer."""
    try:
        runner.run(talk.ask(question))
    except KeyboardInterrupt:
        # Leaving never cancels a turn: its answer is there when the conversation is resumed.
        talk.left()
        return False
    return True


def _next_question(screen: Screen) -> str | None:
    if sys.stdin.isatty() and not screen.no_input:
        print(PROMPT, end="", file=sys.stderr, flush=True)
    try:
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        return None
    return line.rstrip("\n") if line else None


class Talk:
    """One conversation over one gateway."""

    def __init__(self, screen: Screen, target: ChatTarget) -> None:
        self._screen = screen
        self._target = target
        self._opened = Gateway.opened(target.url, target.key)
        self._gateway: Gateway | None = None
        self.conversation_id = target.resume or ""

    async def open(self) -> None:
        """Connect; show the end of a resumed conversation and what still runs in it."""
        self._gateway = await self._opened.__aenter__()
        if not self._target.resume:
            made = await self._gateway.create_conversation(str(uuid.uuid4()))
            self.conversation_id = made["id"]
            return
        messages = await self._gateway.messages(self.conversation_id)
        last = messages[-1] if messages else None
        is_running = last is not None and last["status"] not in TERMINAL
        for message in messages[-SHOWN_OF_BEFORE : -1 if is_running else None]:
            mark = PROMPT if message["role"] == "user" else ""
            self._screen.say(mark + harmless(message["content"]))
        if last is not None and is_running:
            await self._follow(last["turn_id"])

    async def ask(self, question: str) -> None:
        """Post one question and show its answer."""
        gateway = self._connected()
        turn = await gateway.post(self.conversation_id, question, str(uuid.uuid4()))
        await self._follow(turn["turn_id"])

    def left(self) -> None:
        """Say that a running answer goes on."""
        self._screen.say("\nThe answer goes on without you.")

    async def close(self) -> None:
        """Disconnect."""
        if self._gateway is not None:
            await self._opened.__aexit__(None, None, None)
            self._gateway = None

    def _connected(self) -> Gateway:
        if self._gateway is None:
            msg = "The conversation is not open; open it first."
            raise CommandFailed(msg)
        return self._gateway

    async def _follow(self, turn_id: str) -> None:
        answer, began = Answer(), asyncio.get_running_loop().time()
        first_s: float | None = None
        async for event in self._connected().events(turn_id, note=self._note):
            more = answer.take(event)
            if more and first_s is None:
                first_s = asyncio.get_running_loop().time() - began
            if more and not self._screen.as_json:
                self._screen.out(harmless(more), end="")
            if event.event == "status" and answer.state != "generating":
                self._note(answer.state)
        self._tell_end(turn_id, answer, first_s)

    def _tell_end(self, turn_id: str, answer: Answer, first_s: float | None) -> None:
        if self._screen.as_json:
            document = {
                "turn_id": turn_id,
                "status": answer.state,
                "text": answer.text,
                "usage": answer.usage,
                "done": answer.done,
            }
            self._screen.document(document)
            return
        self._screen.out()
        parts = [answer.state]
        if answer.done is not None and answer.done.get("reason"):
            parts[0] += f" ({answer.done['reason']})"
        if first_s is not None:
            parts.append(f"first word after {duration(first_s)}")
        if answer.usage is not None:
            parts.append(f"{answer.usage['input']} + {answer.usage['output']} tokens")
        parts.append(f"turnwire turns plan {turn_id}")
        self._note(" · ".join(parts))

    def _note(self, text: str) -> None:
        self._screen.say(painted(f"  {text}", "idle", on=sys.stderr))
