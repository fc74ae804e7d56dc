"""What the scripted provider may be told to answer, and the bytes of such an answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

FAST_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Rule:
    """How to answer the requests it matches.

    ``None`` everywhere means "not used". Counts of deltas start at 0 = before the first one. The
    order of faults inside one answer: hang, then in-stream error, then cut.
    """

    match: str | None = None  # a part of the last user message
    times: int | None = None  # how many requests it answers, then it is spent
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)  # e.g. {"Retry-After": "7"}
    error: Mapping[str, Any] | None = None  # the error object of a status other than 200
    deltas: Sequence[str] | None = None
    tokens: int = (
        FAST_TOKENS  # so many deltas "t0 ", "t1 " ..., when there are neither deltas nor echo
    )
    echo: bool = False  # the last user message itself, in pieces of echo_chars characters
    echo_chars: int = 4
    first_delay_ms: float = 0.0  # before the answer's head
    delay_ms: float = 0.0  # before every delta
    delays_ms: Sequence[float] = ()  # before delta i, where given, instead of delay_ms
    hang_before_head: bool = False  # accepts the request and says nothing
    hang_after: int | None = None  # head and so many deltas, then silence until released
    error_after: int | None = None  # an error object inside the 200 stream after so many deltas
    cut_after: int | None = None  # connection reset after so many deltas
    end_after: int | None = (
        None  # orderly end of the body after so many deltas: no finish, no [DONE]
    )
    never_ends: bool = False  # repeats its deltas for ever
    finish_reason: str | None = "stop"
    usage: bool | Mapping[str, Any] = True  # True: counted here; a mapping is sent as it is
    done: bool = True  # the closing [DONE]
    line_end: str = "\n"
    cuts: Sequence[int] = ()  # offsets of the event bytes at which a packet of its own begins
    byte_by_byte: bool = False
    cut_pause_ms: float = 1.0  # between such packets, so that the reader gets them apart
    raw_body_b64: str | None = None  # exactly these event bytes instead of generated ones
    reset_at_byte: int | None = (
        None  # connection reset after so many event bytes of the whole answer
    )


@dataclass(slots=True)
class RecordedRequest:
    """What one request brought and what became of it. Times are seconds of the Unix clock."""

    n: int
    path: str
    headers: dict[str, str]  # without keys
    authorized: bool  # some key was sent
    body: bytes
    received_at: float
    rule: str | None = None  # the rule's match; None is the default
    status: int = 0
    deltas_sent: int = 0
    text_sent: str = ""
    first_delta_at: float | None = None
    ended_at: float | None = None
    completed: bool = False  # the script was written to its end
    closed_by_client: bool = False

    @property
    def json(self) -> Any:
        """The decoded body."""
        return json.loads(self.body)

    @property
    def last_user_message(self) -> str:
        """The text of the last message of role ``user``; empty when there is none."""
        return last_user_message_of(self.body)

    def to_json(self) -> dict[str, Any]:
        """For ``GET /requests``; the body as base64 and, where it is UTF-8, as text."""
        known = asdict(self)
        known["body_b64"] = base64.b64encode(self.body).decode()
        known["body"] = self.body.decode("utf-8", "replace")
        return known


def rule_from_json(value: Mapping[str, Any]) -> Rule:
    """A rule from its JSON form.

    Raises:
        ValueError: A field that rules do not have.
    """
    names = {one.name for one in fields(Rule)}
    unknown = sorted(set(value) - names)
    if unknown:
        raise ValueError(f"unknown fields {unknown}; a rule has {sorted(names)}")
    return Rule(**value)


def fast_text(tokens: int = FAST_TOKENS) -> str:
    """The text of the default answer."""
    return "".join(fast_deltas(tokens))


def fast_deltas(tokens: int) -> list[str]:
    return [f"t{i} " for i in range(tokens)]


def last_user_message_of(body: bytes) -> str:
    try:
        messages = json.loads(body).get("messages", [])
    except (ValueError, AttributeError):
        return ""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            return "".join(part.get("text", "") for part in content or ())
    return ""


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_HEAD = {
    "id": "chatcmpl-scripted",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "scripted",
}


class Events:
    """The encoded events of one answer."""

    def __init__(self, line_end: str) -> None:
        self._end = line_end * 2

    def data(self, value: str) -> bytes:
        return f"data: {value}{self._end}".encode()

    def choice(self, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return self.data(dumps({**_HEAD, "choices": [choice]}))

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        return self.data(dumps({**_HEAD, "choices": [], "usage": usage}))

    def error(self, error: Mapping[str, Any]) -> bytes:
        return self.data(dumps({"error": error}))


def chunk(raw: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(raw), raw)


def deltas_of(rule: Rule, last_user: str) -> list[str]:
    if rule.echo:
        size = max(1, rule.echo_chars)
        return [last_user[at : at + size] for at in range(0, len(last_user), size)]
    if rule.deltas is not None:
        return list(rule.deltas)
    return fast_deltas(rule.tokens)


def usage_of(rule: Rule, body: bytes, deltas: int) -> Mapping[str, Any] | None:
    if isinstance(rule.usage, Mapping):
        return rule.usage
    if not rule.usage:
        return None
    prompt = max(1, len(body) // 4)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": deltas,
        "total_tokens": prompt + deltas,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n%s\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


def is_plain(rule: Rule) -> bool:
    """Whether the whole answer can leave in one write: no waits, no faults."""
    return not (
        rule.status != 200
        or rule.first_delay_ms
        or rule.delay_ms
        or rule.delays_ms
        or rule.hang_before_head
        or rule.never_ends
        or rule.cuts
        or rule.byte_by_byte
        or rule.raw_body_b64 is not None
        or any(
            at is not None
            for at in (
                rule.hang_after,
                rule.error_after,
                rule.cut_after,
                rule.end_after,
                rule.reset_at_byte,
            )
        )
    )


def encode_answer(rule: Rule, body: bytes, deltas: Sequence[str]) -> bytes:
    events = Events(rule.line_end)
    extra = "".join(f"{name}: {value}\r\n" for name, value in rule.headers.items())
    parts = [events.choice({"role": "assistant", "content": ""})]
    parts += [events.choice({"content": text}) for text in deltas]
    if rule.finish_reason is not None:
        parts.append(events.choice({}, rule.finish_reason))
    usage = usage_of(rule, body, len(deltas))
    if usage is not None:
        parts.append(events.usage(usage))
    if rule.done:
        parts.append(events.data("[DONE]"))
    return STREAM_HEAD % extra.encode() + b"".join(map(chunk, parts)) + LAST_CHUNK
