"""A turn's stream as a client sees it: one text, one end, over as many connections as it takes."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx

from turnwire.errors import DamagedAnswer, TurnwireError, UnexpectedAnswer
from turnwire.models import Answer, Usage, read
from turnwire.patience import Patience, Trying, is_worth_repeating, lost, problem_of
from turnwire.sse import EventParser, RawEvent


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a stream.

    Attributes:
        id: Goes back to the server as ``Last-Event-ID``; empty for events of a conversation.
        name: Of a turn: ``message_started``, ``status``, ``content_delta``, ``snapshot``,
            ``usage``, ``error``, ``done``. Of a conversation: ``state``, ``turn_began``,
            ``turn_ended``, ``conversation_deleted``. Ignore names that you do not know.
        data: As the server sent it.
    """

    id: str
    name: str
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The piece of a ``content_delta``, the whole text of a ``snapshot``, else empty."""
        return str(self.data.get("text", ""))


class AnswerText:
    """The text of an answer as its stream tells it; a snapshot replaces all text so far.

    Attributes:
        last_id: Of the newest event.
        status: The state that was told last.
        queue_position: Turns that are before this one; None once it runs.
        usage: Told shortly before the end.
        done: Data of the last event, once it came.
    """

    def __init__(self, last_id: str = "") -> None:
        self.text = ""
        self.last_id = last_id
        self.status = "pending"
        self.queue_position: int | None = None
        self.usage: Usage | None = None
        self.done: Mapping[str, Any] | None = None

    def take(self, event: StreamEvent) -> None:
        """Take one event."""
        self.last_id = event.id or self.last_id
        match event.name:
            case "content_delta":
                self.text += event.text
            case "snapshot":
                self.text = event.text
            case "status":
                self.status = str(event.data.get("state", self.status))
                self.queue_position = event.data.get("queue_position")
            case "usage":
                self.usage = read(Usage, event.data)
            case "done":
                self.done = event.data
                self.status = str(event.data.get("status"))

    @property
    def is_damaged(self) -> bool:
        """Whether the stream has ended and its end speaks of another text."""
        if self.done is None:
            return False
        raw = self.text.encode()
        told = self.done.get("sha256")
        return len(raw) != self.done.get("length") or (
            told is not None and told != hashlib.sha256(raw).hexdigest()
        )


class Following:
    """Follows one turn: takes what connections bring, says what to do when one is lost.

    It does no input and no output, so that both clients share it.

    Args:
        after: Id of the last event that the caller has already; its text is then only what comes
            behind it, and is not compared with the end.
    """

    def __init__(self, turn_id: UUID, patience: Patience, *, now_s: float, after: str = "") -> None:
        self.turn_id = turn_id
        self.answer = AnswerText(after)
        self.is_over = False
        self._is_whole = not after
        self._was_read_anew = False
        self._trying = Trying(patience, now_s)
        self._parser = EventParser()
        self._failure: TurnwireError | None = None

    @property
    def path(self) -> str:
        """Of the stream."""
        return f"/v1/turns/{self.turn_id}/events"

    @property
    def is_reading(self) -> bool:
        """Whether this connection has more for us."""
        return not self.is_over and self._failure is None

    def headers(self) -> dict[str, str]:
        """Of the next connection."""
        self._parser = EventParser()
        self._failure = None
        found = {"Accept": "text/event-stream"}
        if self.answer.last_id:
            found["Last-Event-ID"] = self.answer.last_id
        return found

    def opened(self, response: httpx.Response) -> bool:
        """Whether the connection has something to read; its body is read already if not.

        Raises:
            TurnwireError: The stream cannot be had, now or later.
        """
        if response.status_code == httpx.codes.NO_CONTENT:
            self.is_over = True
            return False
        error = problem_of(response)
        if error is None:
            return True
        if not is_worth_repeating(error):
            raise error
        self._failure = error
        return False

    def feed(self, chunk: bytes, *, now_s: float) -> Iterator[StreamEvent]:
        """The events that bytes complete; nothing follows the last one.

        Raises:
            DamagedAnswer: The end speaks of another text, also after reading everything anew.
        """
        for raw in self._parser.feed(chunk):
            if not self.is_reading:
                return
            event = event_of(raw)
            self._trying.went_on(now_s)
            self.answer.take(event)
            if event.name == "done" and not self._is_accepted():
                return
            yield event

    def broke_off(self, error: httpx.TransportError) -> None:
        """The connection was lost."""
        self._failure = lost(error)

    def pause(self, *, now_s: float) -> float:
        """Seconds until the next connection.

        Raises:
            TurnwireError: It has been enough.
        """
        return self._trying.pause_after(self._failure or lost(None), now_s)

    def result(self) -> Answer:
        """The answer in its final state.

        Raises:
            UnexpectedAnswer: The stream has not been read to its end.
        """
        done = self.answer.done
        if done is None:
            msg = "the stream was not read to its end, so there is no final answer yet"
            raise UnexpectedAnswer(msg)
        answer = self.answer
        return Answer(self.turn_id, answer.status, done.get("reason"), answer.text, answer.usage)

    def _is_accepted(self) -> bool:
        """Whether the end fits the text; if not, everything is read once more from the start."""
        if not (self._is_whole and self.answer.is_damaged):
            self.is_over = True
            return True
        damage = DamagedAnswer(
            f"The text of turn {self.turn_id} differs in length or checksum from what the end of "
            "its stream says. Read the message from the conversation instead, and report this."
        )
        if self._was_read_anew:
            raise damage
        self._was_read_anew = True
        self._failure = damage
        self.answer = AnswerText()
        return False


class Watching:
    """Watches a conversation: every connection begins with its state, so nothing is resumed."""

    def __init__(self, conversation_id: UUID, patience: Patience, *, now_s: float) -> None:
        self.path = f"/v1/conversations/{conversation_id}/events"
        self.is_over = False
        self._trying = Trying(patience, now_s)
        self._parser = EventParser()
        self._failure: TurnwireError | None = None

    @property
    def is_reading(self) -> bool:
        """Whether this connection has more for us."""
        return not self.is_over and self._failure is None

    def headers(self) -> dict[str, str]:
        """Of the next connection."""
        self._parser = EventParser()
        self._failure = None
        return {"Accept": "text/event-stream"}

    def opened(self, response: httpx.Response) -> bool:
        """Whether the connection has something to read; its body is read already if not.

        Raises:
            TurnwireError: There is nothing to watch (any more).
        """
        error = problem_of(response)
        if error is None:
            return True
        if not is_worth_repeating(error):
            raise error
        self._failure = error
        return False

    def feed(self, chunk: bytes, *, now_s: float) -> Iterator[StreamEvent]:
        """The events that bytes complete."""
        for raw in self._parser.feed(chunk):
            if self.is_over:
                return
            event = event_of(raw)
            self._trying.went_on(now_s)
            self.is_over = event.name == "conversation_deleted"
            yield event

    def broke_off(self, error: httpx.TransportError) -> None:
        """The connection was lost."""
        self._failure = lost(error)

    def pause(self, *, now_s: float) -> float:
        """Seconds until the next connection.

        Raises:
            TurnwireError: It has been enough.
        """
        return self._trying.pause_after(self._failure or lost(None), now_s)


def event_of(raw: RawEvent) -> StreamEvent:
    """An event with its data read.

    Raises:
        UnexpectedAnswer: The data is no JSON object.
    """
    try:
        data = json.loads(raw.data)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        msg = f"the data of a stream's event {raw.name} is no JSON object"
        raise UnexpectedAnswer(msg)
    return StreamEvent(raw.id, raw.name, data)
