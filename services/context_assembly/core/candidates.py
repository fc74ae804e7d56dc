"""What the data layers offer a prompt: texts nobody vouches for, and the rules that bar them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from schemas.prompt_plan import FIXED_TEXTS, NONCE_LENGTH, Trust, frame
from services.context_assembly.core.counts import fixed_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schemas.prompt_plan import ExclusionReason, Section

MIN_CONFIDENCE: Final = 0.85
"""Below it a remembered claim is not shown as one; a wrong certainty costs more than a gap."""

TRUST: Final[dict[Section, Trust]] = {
    "summary": "derived",
    "memory": "derived",
    "retrieved": "data",
    "tools": "tool_result",
}

_NEEDS_EVIDENCE: Final[frozenset[Section]] = frozenset({"summary", "memory"})
_NEEDS_PERMISSION: Final[frozenset[Section]] = frozenset({"retrieved"})

# What stands inside a fence's quotes: nothing that could close them, and never a bare message id.
_ID: Final = re.compile(r"[a-z_]{1,32}:[A-Za-z0-9._:/@+-]{1,160}")
_KIND: Final = re.compile(r"[a-z_]{1,32}")
_OWN_KINDS: Final = frozenset(
    {"system", "framing", "message", "current", "continuation", *FIXED_TEXTS}
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text that a layer would like to show.

    Attributes:
        section: The layer it belongs to.
        id: Unique in a plan; a name of its kind, a colon and the owner's id.
        tokens: Of the text alone, in the model's tokenizer.
        score: Of retrieved texts and facts: a higher one is kept longer.
        permission_checked_at: When the caller's right to see it was checked, ISO 8601.
        group: Candidates with the same name are shown together or not at all.
        rank: Place inside the section; 0 comes first. Higher is newer in summaries and tools.
        supersedes: Ids of candidates that it replaces.
        evidence: Stored messages that a summary or a fact rests on.
        confidence: How sure its maker was, 0 to 1; None where that means nothing.
        excluded: Why its layer already knows that it may not be shown.
    """

    section: Section
    id: str
    kind: str
    source: str
    version: str | None
    observed_at: str | None
    text: str
    tokens: int
    score: float | None = None
    permission_checked_at: str | None = None
    group: str = ""
    rank: int = 0
    supersedes: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    confidence: float | None = None
    excluded: ExclusionReason | None = None

    def __post_init__(self) -> None:
        """Refuse a name that could break out of its fence.

        Raises:
            ValueError: The layer that made it is wrong, whatever its data are.
        """
        if self.section not in TRUST:
            msg = f"section {self.section} takes no candidates"
            raise ValueError(msg)
        is_kind = _KIND.fullmatch(self.kind) is not None and self.kind not in _OWN_KINDS
        if _ID.fullmatch(self.id) is None or not is_kind:
            msg = f"a candidate of {self.section} has an id or a kind that may not stand in a fence"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class DataGroup:
    """Candidates that are kept or left out together, in the prompt's order.

    Attributes:
        tokens: Of all of them, fences included.
    """

    members: tuple[Candidate, ...]
    tokens: int

    @property
    def score(self) -> float:
        """The best score of its members; 0 where none has one."""
        return max((c.score for c in self.members if c.score is not None), default=0.0)

    @property
    def rank(self) -> int:
        """The place of its last member."""
        return max(candidate.rank for candidate in self.members)


@dataclass(frozen=True, slots=True)
class Barred:
    """A candidate that may not be shown whatever the budget."""

    id: str
    reason: ExclusionReason


@dataclass(frozen=True, slots=True)
class Screened:
    """Candidates after the rules that no budget changes."""

    groups: tuple[DataGroup, ...]
    barred: tuple[Barred, ...]


def framed_tokens(candidate: Candidate, tokenizer: str) -> int:
    """Tokens of a candidate in its frame, whatever the nonce: each of its digits counts as one."""
    fences = frame("", nonce="", kind=candidate.kind, block_id=candidate.id)
    return candidate.tokens + fixed_count(fences, tokenizer) + 2 * NONCE_LENGTH + _JOINT_TOKENS


_JOINT_TOKENS: Final = 1
"""The line break between two frames of one message."""


def screen(candidates: Iterable[Candidate], tokenizer: str) -> Screened:
    """Bar what may not be shown, and put the rest into groups; the order given means nothing.

    A group with one barred member is barred whole: half of it would say something else.
    """
    ordered = sorted(candidates, key=_order)
    replaced = frozenset(name for candidate in ordered for name in candidate.supersedes)
    barred: list[Barred] = []
    kept: dict[tuple[Section, str], list[Candidate]] = {}
    bad: dict[tuple[Section, str], ExclusionReason] = {}
    seen: set[str] = set()
    for candidate in ordered:
        if candidate.id in seen:
            barred.append(Barred(candidate.id, "duplicate"))
            continue
        seen.add(candidate.id)
        key = (candidate.section, candidate.group or candidate.id)
        kept.setdefault(key, []).append(candidate)
        reason = _verdict(candidate, replaced)
        if reason is not None:
            bad.setdefault(key, reason)
    groups = []
    for key, members in kept.items():
        if key in bad:
            barred += [Barred(member.id, bad[key]) for member in members]
        else:
            tokens = sum(framed_tokens(member, tokenizer) for member in members)
            groups.append(DataGroup(tuple(members), tokens))
    return Screened(tuple(groups), tuple(barred))


def by_score(groups: Iterable[DataGroup]) -> list[DataGroup]:
    """Best first; equal scores in the order of their ids."""
    return sorted(groups, key=lambda group: (-group.score, group.members[0].id))


def by_age(groups: Iterable[DataGroup]) -> list[DataGroup]:
    """Newest first, as their layer ranked them; equal ranks in the order of their ids."""
    return sorted(groups, key=lambda group: (-group.rank, group.members[0].id))


def in_prompt_order(groups: Sequence[DataGroup]) -> tuple[Candidate, ...]:
    """Members of all groups by rank; a group stands together."""
    first = sorted(groups, key=lambda group: (group.members[0].rank, group.members[0].id))
    return tuple(member for group in first for member in group.members)


def _order(candidate: Candidate) -> tuple[str, int, str, str]:
    return (candidate.section, candidate.rank, candidate.id, candidate.text)


def _verdict(candidate: Candidate, replaced: frozenset[str]) -> ExclusionReason | None:
    if candidate.excluded is not None:
        return candidate.excluded
    if candidate.id in replaced:
        return "superseded"
    if candidate.section in _NEEDS_PERMISSION and candidate.permission_checked_at is None:
        return "unauthorized"
    if candidate.section in _NEEDS_EVIDENCE:
        is_unsure = candidate.confidence is not None and candidate.confidence < MIN_CONFIDENCE
        if is_unsure or not candidate.evidence:
            return "low_confidence"
    return None
