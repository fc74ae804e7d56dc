"""The text of an answer as its stream tells it, and what of it is still to be shown."""

import hashlib
import json
from typing import Any

from services.ops.sse import StreamEvent


class Answer:
    """Grows with the events of one turn's stream; a snapshot replaces all text so far.

    Attributes:
        done: The data of the last entry, once it came.
    """

    def __init__(self) -> None:
        self.text = ""
        self.last_id = ""
        self.state = "pending"
        self.usage: dict[str, Any] | None = None
        self.done: dict[str, Any] | None = None

    def take(self, event: StreamEvent) -> str:
        """Take one event.

        Returns:
            What to print behind what was printed before; it begins with a line end where that has
            become wrong and the whole text follows.
        """
        data = json.loads(event.data)
        self.last_id = event.id or self.last_id
        match event.event:
            case "content_delta":
                self.text += data["text"]
                return str(data["text"])
            case "snapshot":
                return self._replaced(data["text"])
            case "status":
                self.state = data.get("state", self.state)
            case "usage":
                self.usage = data
            case "done":
                self.done = data
                self.state = data["status"]
        return ""

    def _replaced(self, text: str) -> str:
        before, self.text = self.text, text
        return text[len(before) :] if text.startswith(before) else f"\n{text}"

    def differs(self) -> str | None:
        """How the text differs from what the stream's last entry says of it; None if not at all."""
        if self.done is None:
            return "the stream has not ended"
        raw = self.text.encode()
        if len(raw) != self.done["length"]:
            return f"{len(raw)} bytes came, the end says {self.done['length']}"
        digest = hashlib.sha256(raw).hexdigest()
        if self.done.get("sha256") not in (None, digest):
            return "the checksum is another one"
        return None
