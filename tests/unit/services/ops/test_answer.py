"""The text that is shown is the text that the stream tells, once."""

import hashlib
import json

from services.ops.answer import Answer
from services.ops.sse import StreamEvent


def event(id_: str, name: str, **data: object) -> StreamEvent:
    return StreamEvent(id_, name, json.dumps(data))


def end(text: str, **changed: object) -> StreamEvent:
    raw = text.encode()
    facts = {"status": "completed", "reason": None, "length": len(raw)}
    digest = hashlib.sha256(raw).hexdigest()
    return event("2147483647-2", "done", **{**facts, "sha256": digest, **changed})


def test_deltas_are_shown_as_they_come() -> None:
    answer = Answer()
    shown = [
        answer.take(event("0-1", "message_started", turn_id="t", message_id="m", seq=2)),
        answer.take(event("1-1", "status", state="generating", attempt=1)),
        answer.take(event("1-2", "content_delta", text="Grü")),
        answer.take(event("1-3", "content_delta", text="n.")),
    ]
    assert shown == ["", "", "Grü", "n."]
    assert (answer.text, answer.state, answer.last_id) == ("Grün.", "generating", "1-3")
    assert answer.differs() == "the stream has not ended"


def test_a_snapshot_shows_only_what_is_new() -> None:
    answer = Answer()
    answer.take(event("1-2", "content_delta", text="Hello"))
    assert answer.take(event("1-9", "snapshot", text="Hello, world", upto="1-9")) == ", world"


def test_a_snapshot_with_another_text_replaces_all() -> None:
    answer = Answer()
    answer.take(event("1-2", "content_delta", text="Hello"))
    assert answer.take(event("1-9", "snapshot", text="Good day", upto="1-9")) == "\nGood day"
    assert answer.text == "Good day"


def test_an_end_that_fits_the_text_differs_in_nothing() -> None:
    answer = Answer()
    answer.take(event("1-2", "content_delta", text="Grün."))
    answer.take(event("2147483647-1", "usage", input=3, output=2))
    answer.take(end("Grün."))
    assert answer.differs() is None
    assert (answer.state, answer.usage) == ("completed", {"input": 3, "output": 2})


def test_a_lost_character_and_a_changed_one_are_noticed() -> None:
    short, changed = Answer(), Answer()
    short.take(event("1-2", "content_delta", text="Grün"))
    short.take(end("Grün."))
    changed.take(event("1-2", "content_delta", text="Grün!"))
    changed.take(end("Grün."))
    assert short.differs() == "5 bytes came, the end says 6"
    assert changed.differs() == "the checksum is another one"
