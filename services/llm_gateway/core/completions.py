"""Reads the stream of an OpenAI-compatible chat completion: bytes in, typed parts out.

Stop reasons, usage and errors of the many servers that speak this protocol come out in one form.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import orjson

from schemas.usage import Usage
from services.llm_gateway.core.failures import Failure, FailureKind, of_error_object
from services.llm_gateway.core.sse_decoder import SseDecoder


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer; never empty, free of U+0000 and of halves of surrogate pairs."""

    text: str


@dataclass(frozen=True, slots=True)
class Named:
    """What the provider calls its answer; None where it says nothing, or nothing like a name.

    Attributes:
        id: Of the answer, with the provider.
        model: That answered; often a dated version of the one that was asked for.
    """

    id: str | None = None
    model: str | None = None


NAMELESS = Named()


@dataclass(frozen=True, slots=True)
class Finished:
    """The model stopped: ``stop``, ``length``, ``content_filter`` or ``other``."""

    reason: str
    named: Named = field(default=NAMELESS, compare=False)


@dataclass(frozen=True, slots=True)
class UsageReported:
    """Tokens as the provider counted them.

    Attributes:
        reasoning: Of the output, what the model thought to itself; None where it does not say.
    """

    usage: Usage
    reasoning: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """The provider said in its stream, or by breaking the protocol, that it failed."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Done:
    """The provider's own end marker; nothing after it counts."""


Part: TypeAlias = TextDelta | Finished | UsageReported | Failed | Done

FINISH_REASONS = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "refusal": "content_filter",
}
OTHER = "other"
_DONE_MARK = "[DONE]"
_NAME = re.compile(r"[\w.:/@+-]{1,128}", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_HIGH_SURROGATES = ("\ud800", "\udbff")
_MALFORMED = Failed(Failure(FailureKind.MALFORMED))


class CompletionReader:
    """Incremental reader of one stream.

    Attributes:
        events: How many events were read so far.
    """

    def __init__(self) -> None:
        self._decoder = SseDecoder()
        self._half = ""  # a high surrogate whose other half is in the next delta
        self._is_done = False
        self.events = 0  # comments, by which servers keep a connection open, are none

    def feed(self, raw: bytes) -> list[Part]:
        """The parts that these bytes complete, in order.

        Raises:
            EventTooLarge: One event passed the bound of the decoder.
        """
        parts: list[Part] = []
        for data in self._decoder.feed(raw):
            self.events += 1
            if self._is_done:
                break
            self._read(data, parts)
        return parts

    def close(self) -> list[Part]:
        """What was held back when the stream ends: half a character becomes U+FFFD."""
        half, self._half = self._half, ""
        return [TextDelta("\ufffd")] if half else []

    def read_whole(self, raw: bytes) -> list[Part]:
        """The parts of an answer that came as one JSON document instead of a stream."""
        parts: list[Part] = []
        self._read(raw.decode("utf-8", "replace"), parts)
        return [*parts, *self.close()]

    def _read(self, data: str, parts: list[Part]) -> None:
        if data.strip() == _DONE_MARK:
            self._is_done = True
            parts.append(Done())
            return
        try:
            chunk = _loaded(data)
        except (ValueError, RecursionError):
            parts.append(_MALFORMED)
            return
        if not isinstance(chunk, Mapping):
            parts.append(_MALFORMED)
            return
        if chunk.get("error"):
            parts.append(Failed(of_error_object(chunk["error"])))
            return
        self._choices(chunk, parts)
        usage = _usage(chunk.get("usage"))
        if usage is not None:
            parts.append(UsageReported(usage, _reasoning(chunk["usage"])))

    def _choices(self, chunk: Mapping[str, object], parts: list[Part]) -> None:
        choices = chunk.get("choices")
        if not isinstance(choices, Sequence) or isinstance(choices, str):
            return
        for choice in choices:
            if not isinstance(choice, Mapping) or choice.get("index") not in (0, None):
                continue
            text = self._joined(_content(choice))
            if text:
                parts.append(TextDelta(text))
            reason = choice.get("finish_reason")
            if isinstance(reason, str) and reason:
                known = FINISH_REASONS.get(reason.lower(), OTHER)
                parts.append(Finished(known, _named(chunk)))

    def _joined(self, text: str) -> str:
        """Text with split surrogate pairs joined again and what cannot be stored taken out."""
        if "\x00" in text:
            text = text.replace("\x00", "")
        if not self._half and (text.isascii() or not _SURROGATE.search(text)):
            return text
        if not text:
            return ""
        text = self._half + text
        self._half = ""
        if _HIGH_SURROGATES[0] <= text[-1] <= _HIGH_SURROGATES[1]:
            self._half, text = text[-1], text[:-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _loaded(data: str) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # Slower and laxer: it reads halves of surrogate pairs, which some servers send.
        return json.loads(data)


def _content(choice: Mapping[str, object]) -> str:
    """The visible text of a delta, or of the message of an answer that was not streamed."""
    delta = choice.get("delta") or choice.get("message")
    if not isinstance(delta, Mapping):
        return ""
    for name in ("content", "refusal"):
        text = delta.get(name)
        if isinstance(text, str) and text:
            return text
    return ""


def _usage(value: object) -> Usage | None:
    if not isinstance(value, Mapping):
        return None
    read, written = _count(value.get("prompt_tokens")), _count(value.get("completion_tokens"))
    if read is None or written is None:
        return None
    details = value.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    if cached is None:
        cached = _count(value.get("prompt_cache_hit_tokens"))
    return Usage(input=read, output=written, cached=min(cached or 0, read))


def _reasoning(usage: Mapping[str, object]) -> int | None:
    details = usage.get("completion_tokens_details")
    return _count(details.get("reasoning_tokens")) if isinstance(details, Mapping) else None


def _named(chunk: Mapping[str, object]) -> Named:
    return Named(_name(chunk.get("id")), _name(chunk.get("model")))


def _name(value: object) -> str | None:
    """A foreign text only if it has the shape of a name: it goes to where no texts may go."""
    return value if isinstance(value, str) and _NAME.fullmatch(value) else None


def _count(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count and isinstance(value, int) else None
