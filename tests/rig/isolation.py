"""Looks for one tenant's canary in everything that reached another one, or nobody's business."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import orjson

from schemas.streams import Entry, delta_text
from tests.rig.ledger import CANARY, Ledger, canary_of
from tests.rig.verdict import Verdict

PROMISE = "tenant_isolation"
SEEN = "canary_seen"
"""Counts where a tenant's own canary was found, which shows that a foreign one would be."""

TAIL_BYTES = 64
"""Of a chunk, carried into the next one: a canary may lie across the edge."""

CHUNK_BYTES = 1 << 20


def check_ledger(ledger: Ledger, verdict: Verdict) -> None:
    """Every reply and every event that a client got, and each text that it put together."""
    own = {canary_of(ledger.tenant_id)}
    for post in ledger.posts:
        for reply in post.replies:
            told = orjson.dumps([reply.body, reply.headers]).decode()
            _check(told, own, f"a reply to key {post.key}", verdict)
        if post.stream is not None:
            text = "".join(event.data.decode() for event in post.stream.events)
            _check(text, own, f"the events of turn {post.turn_id}", verdict)
            _check(post.stream.text, own, f"the answer of turn {post.turn_id}", verdict)
    for act in ledger.acts:
        for reply in act.replies:
            told = orjson.dumps([reply.body, reply.headers]).decode()
            _check(told, own, f"a reply to {act.kind} of {act.target}", verdict)


def check_prompts(prompts: Sequence[bytes], verdict: Verdict) -> None:
    """A prompt shows the texts of one tenant."""
    for body in prompts:
        found = set(CANARY.findall(body.decode()))
        verdict.checked[SEEN] += bool(found)
        verdict.check(
            PROMISE,
            holds=len(found) <= 1,
            otherwise=f"one prompt shows the tenants {sorted(found)}",
        )


def check_topics(topics: Mapping[str, Sequence[bytes]], verdict: Verdict) -> None:
    """Topics between services hold nobody's text."""
    for topic, records in topics.items():
        for raw in records:
            _check(raw.decode(errors="replace"), set(), f"a record of {topic}", verdict)


def check_streams(
    streams: Mapping[UUID, Sequence[Entry]], tenant_of: Mapping[UUID, UUID], verdict: Verdict
) -> None:
    """A turn's stream in Redis holds its own tenant's text."""
    for turn_id, entries in streams.items():
        if turn_id in tenant_of:
            text = "".join(map(delta_text, entries))
            own = {canary_of(tenant_of[turn_id])}
            _check(text, own, f"the stream of turn {turn_id}", verdict)


def check_logs(paths: Iterable[Path], verdict: Verdict) -> None:
    """Logs hold nobody's text."""
    for path in paths:
        found: set[str] = set()
        tail = b""
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                text = tail + chunk
                found.update(CANARY.findall(text.decode(errors="replace")))
                tail = text[-TAIL_BYTES:]
        verdict.check(
            PROMISE,
            holds=not found,
            otherwise=f"the log {path.name} shows texts of {sorted(found)[:5]}",
        )


def _check(text: str, own: set[str], where: str, verdict: Verdict) -> None:
    found = set(CANARY.findall(text))
    verdict.checked[SEEN] += bool(found & own)
    verdict.check(
        PROMISE,
        holds=found <= own,
        otherwise=f"{where} shows {sorted(found - own)}, a text of somebody else",
    )
