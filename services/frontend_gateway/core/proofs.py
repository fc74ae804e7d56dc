"""Answers from a plan whether the model was shown something, and proves what it was sent."""

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from schemas.prompt_plan import (
    FIXED_TEXTS,
    PlanBlock,
    PromptPlanV1,
    TextMissing,
    checksum,
    render,
    text_of,
)
from services.frontend_gateway.core.cursors import uuid_of
from services.frontend_gateway.core.evidence import (
    Branches,
    Document,
    MessageFacts,
    Place,
    exclusions,
    is_trimmed,
    section_budget,
)

MAX_ALSO = 20  # further places of a text; more would not help anybody to find it


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored message that holds what was asked for.

    Attributes:
        is_on_path: It stands on the branch of the turn.
    """

    id: UUID
    seq: int
    is_deleted: bool
    is_superseded: bool
    is_on_path: bool


def candidate_of(facts: MessageFacts, branches: Branches, branch: UUID) -> Candidate:
    """A message as seen from a branch."""
    return Candidate(
        id=facts.id,
        seq=facts.seq,
        is_deleted=facts.is_deleted,
        is_superseded=facts.superseded_by is not None,
        is_on_path=branches.shows(branch, of=facts.branch_id, seq=facts.seq),
    )


def candidates_at(places: Sequence[Place], branches: Branches, branch: UUID) -> list[Candidate]:
    """Places where a text was found, as seen from a branch."""
    return [
        Candidate(
            id=place.message_id,
            seq=place.seq,
            is_deleted=False,
            is_superseded=False,
            is_on_path=branches.shows(branch, of=place.branch_id, seq=place.seq),
        )
        for place in places
    ]


@dataclass(frozen=True, slots=True)
class Span:
    """Where something stands in a plan: indices of its first and its last block."""

    first: int
    last: int


def in_one_form(text: str) -> str:
    """A text as it is compared: composed characters, and one space for any white space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def blocks_with(document: Document, texts: Mapping[str, str], needle: str) -> list[Span]:
    """Where a text is shown, in the order of the prompt.

    Whoever asks copied it from a screen: how characters are composed and where lines break means
    nothing. Where no block holds it whole, the first run of blocks that hold it together is told.
    """
    shown = _shown_texts(document, texts)
    wanted = in_one_form(needle)
    found = [Span(n, n) for n, text in enumerate(shown) if text is not None and wanted in text]
    if found:
        return found
    for joint in (" ", ""):
        run = _run_with(shown, wanted, joint)
        if run is not None:
            return [run]
    return []


def _shown_texts(document: Document, texts: Mapping[str, str]) -> list[str | None]:
    """The text of every block in the form that is compared; None of one that is stored no more."""
    plan = PromptPlanV1.model_validate(document)
    found: list[str | None] = []
    for block in plan.blocks:
        try:
            found.append(in_one_form(text_of(block, nonce=plan.nonce, texts=texts)))
        except TextMissing:
            found.append(None)  # deleted since: whether it held a text cannot be told
    return found


def _run_with(shown: Sequence[str | None], wanted: str, joint: str) -> Span | None:
    """The first run of blocks whose texts hold ``wanted`` when they are joined."""
    # Nothing that is looked for holds NUL, so nothing is found over a block without a text.
    parts = ["\0" if text is None else text for text in shown]
    at = joint.join(parts).find(wanted)
    if at < 0:
        return None
    last_at = at + len(wanted) - 1
    ends: list[int] = []
    for part in parts:
        ends.append((ends[-1] + len(joint) if ends else 0) + len(part))
    first = next(n for n, end in enumerate(ends) if at < end)
    last = next(n for n, end in enumerate(ends) if last_at < end)
    return Span(first, last)


def wordings(document: Document, texts: Mapping[str, str], needle: str) -> list[str]:
    """What to look for among stored messages, the likeliest first; at most six.

    As it was given, with its characters composed and decomposed; then the longest of its lines that
    the plan does not show, since a text from several messages stands in none of them.
    """
    shown = [text for text in _shown_texts(document, texts) if text is not None]
    lines = (line.strip() for line in needle.splitlines())
    unseen = [
        line for line in lines if line and not any(in_one_form(line) in text for text in shown)
    ]
    wanted = [needle, *sorted(unseen, key=len)[-1:]]
    return list(dict.fromkeys(spelled for one in wanted for spelled in _spellings(one)))


def _spellings(text: str) -> tuple[str, str, str]:
    return text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)


def blocks_of(document: Document, message_id: UUID) -> list[Span]:
    """Where a message is shown."""
    return [
        Span(index, index)
        for index, block in enumerate(document.get("blocks", ()))
        if block["id"] == str(message_id)
    ]


def present(document: Document, spans: Sequence[Span]) -> dict[str, Any]:
    """The answer where something was shown: block i of n, token k of m, in whose words."""
    blocks = document["blocks"]
    block = blocks[spans[0].first]
    return {
        "verdict": "present",
        "block": spans[0].first + 1,
        "to_block": spans[0].last + 1,
        "of": len(blocks),
        "block_id": block["id"],
        "token_offset": block["token_offset"],
        "of_tokens": document["budget"]["used"],
        "trust": block["trust"],
        "section": block["layer"],
        "message_id": block["id"] if uuid_of(str(block["id"])) is not None else None,
        "reason": None,
        "budget": section_budget(document, block["layer"]),
        "also_in": [blocks[span.first]["id"] for span in spans[1 : MAX_ALSO + 1]],
    }


def absent(document: Document, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """The answer where nothing was shown: why, and what the history could use at that time."""
    base_seq = int(document["history"]["base_seq"])
    ranked = sorted(candidates, key=lambda one: (not one.is_on_path, one.seq >= base_seq, -one.seq))
    found = ranked[0] if ranked else None
    return {
        "verdict": "absent",
        "block": None,
        "to_block": None,
        "of": len(document["blocks"]),
        "block_id": None,
        "token_offset": None,
        "of_tokens": document["budget"]["used"],
        "trust": None,
        "section": "history",
        "message_id": None if found is None else str(found.id),
        "reason": "not_stored" if found is None else _reason(document, found),
        "budget": section_budget(document, "history"),
        "also_in": [],
    }


def _reason(document: Document, found: Candidate) -> str:
    if found.is_deleted:
        return "deleted"
    named = exclusions(document).get(found.id)
    if named is not None:
        return named
    if not found.is_on_path:
        return "superseded"
    if found.seq >= int(document["history"]["base_seq"]):
        return "later"
    if is_trimmed(document, found.seq):
        return "budget"
    return "superseded" if found.is_superseded else "no_answer"


@dataclass(frozen=True, slots=True)
class Replayed:
    """A payload made again from what is stored.

    Attributes:
        fingerprint_now: None where a text is missing, so that nothing can be made.
        changed: Block id and why: ``deleted``, ``text_changed`` or ``missing``.
    """

    fingerprint_sent: str
    fingerprint_now: str | None
    changed: tuple[tuple[str, str], ...]

    @property
    def is_equal(self) -> bool:
        """Whether the stored rows still prove what was sent."""
        return self.fingerprint_now == self.fingerprint_sent


def replayed(
    document: Document, texts: Mapping[str, str], facts: Mapping[UUID, MessageFacts]
) -> Replayed:
    """Make the payload of a plan again and compare it with what was sent.

    Args:
        texts: Text of each stored block that still has one, by block id.
        facts: Of the plan's messages.
    """
    plan = PromptPlanV1.model_validate(document)
    changed = tuple(
        (block.id, why)
        for block in plan.blocks
        if (why := _change(block, plan.nonce, texts, facts)) is not None
    )
    try:
        now = hashlib.sha256(render(plan.model_dump(by_alias=True), texts)).hexdigest()
    except TextMissing:
        now = None
    return Replayed(plan.fingerprint, now, changed)


def _change(
    block: PlanBlock,
    nonce: str | None,
    texts: Mapping[str, str],
    facts: Mapping[UUID, MessageFacts],
) -> str | None:
    try:
        text = text_of(block, nonce=nonce, texts=texts)
    except TextMissing:
        id_ = uuid_of(block.id)
        known = None if id_ is None else facts.get(id_)
        return "deleted" if known is not None and known.is_deleted else "missing"
    if block.checksum is None or checksum(text) == block.checksum:
        return None
    return "text_changed"


def stored_texts(document: Document) -> tuple[list[UUID], list[tuple[str, str, str, str]]]:
    """What has to be read to make a plan's payload again.

    Returns:
        Ids of messages, and the operator's texts as (block id, kind, scope, version).
    """
    messages = [
        id_
        for block in document["blocks"]
        if block["source"] == "ingestion.messages"
        and block["kind"] not in FIXED_TEXTS
        and (id_ := uuid_of(str(block["id"]))) is not None
    ]
    instructions = [
        (str(one["id"]), str(one["kind"]), str(one["scope"]), str(one["version"]))
        for one in document.get("instructions", ())
    ]
    return messages, instructions
