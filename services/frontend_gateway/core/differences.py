"""Compares two plans of a conversation and names the pattern that the difference shows."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from services.frontend_gateway.core.evidence import (
    Document,
    MessageFacts,
    exclusions,
    is_trimmed,
    shown_messages,
)

Pattern = Literal[
    "foreign",
    "twice",
    "swapped",
    "stale_revision",
    "clipped",
    "vanished",
    "two_new",
    "one_new",
    "several_new",
    "unchanged",
]
"""Worst first: a difference that shows several is named after the first of them."""

HEALTHY: frozenset[Pattern] = frozenset({"two_new", "one_new", "several_new", "unchanged"})

MEANT = frozenset({"budget", "deleted", "superseded", "other_branch"})
"""Reasons for which a message is rightly shown no longer."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed from one plan to another.

    Attributes:
        patterns: Everything that is seen, worst first.
        added: Shown now and not before.
        vanished: Shown before and not now, with the reason of each.
        twice: Shown twice, or the same speaker's message of one turn under two ids.
        foreign: Of another conversation, or of none that this tenant has.
        swapped: Stand in another order than before, or against their numbers.
        stale: Shown although something was said instead of it, or in an older version.
    """

    patterns: tuple[Pattern, ...]
    added: tuple[UUID, ...] = ()
    vanished: tuple[tuple[UUID, str], ...] = ()
    twice: tuple[UUID, ...] = ()
    foreign: tuple[UUID, ...] = ()
    swapped: tuple[UUID, ...] = ()
    stale: tuple[str, ...] = ()

    @property
    def pattern(self) -> Pattern:
        """The worst of what is seen."""
        return self.patterns[0]

    @property
    def is_healthy(self) -> bool:
        """Whether everything that is seen is meant to be so: growth, and what has a good reason."""
        seen = set(self.patterns) - HEALTHY
        return seen <= {"vanished"} and all(why in MEANT for _, why in self.vanished)

    @property
    def line(self) -> str:
        """The same in one line for a person."""
        return _LINES[self.pattern].format(
            added=len(self.added),
            vanished=len(self.vanished),
            reasons=", ".join(sorted({reason for _, reason in self.vanished})),
            twice=len(self.twice),
            foreign=len(self.foreign),
            swapped=len(self.swapped),
            stale=len(self.stale),
        )


_LINES: Mapping[Pattern, str] = {
    "two_new": "Healthy: exactly the earlier answer and the new message were added.",
    "one_new": "Healthy: exactly the new message was added; the earlier turn has no answer.",
    "several_new": "{added} messages were added: the turns do not follow each other directly.",
    "unchanged": "Both plans show the same messages.",
    "vanished": "{vanished} messages are shown no longer ({reasons}).",
    "clipped": "The range starts later, {vanished} messages are missing, and no exclusion says so.",
    "twice": "{twice} messages stand twice: they were written or read twice.",
    "foreign": "{foreign} messages belong to another conversation, or to nobody here.",
    "swapped": "{swapped} messages changed their order.",
    "stale_revision": "{stale} texts are shown in an older version than is known.",
}


def differences(
    before: Document,
    after: Document,
    facts: Mapping[UUID, MessageFacts],
    *,
    conversation: UUID,
    is_on_path: Callable[[MessageFacts], bool],
) -> Difference:
    """What is shown by ``after`` and was not by ``before``, and the other way round.

    Args:
        facts: Of every message that one of the plans shows; none of messages nobody knows.
        conversation: Which both plans are about.
        is_on_path: Whether a message stands on the branch that ``after`` was made for.
    """
    old, new = shown_messages(before), shown_messages(after)
    foreign = tuple(
        id_ for id_ in new if id_ not in facts or facts[id_].conversation_id != conversation
    )
    vanished = tuple(
        (id_, _why(after, id_, facts.get(id_), is_on_path)) for id_ in old if id_ not in set(new)
    )
    added = tuple(dict.fromkeys(id_ for id_ in new if id_ not in set(old)))
    found = {
        "added": added,
        "vanished": vanished,
        "twice": _twice(new, facts),
        "foreign": foreign,
        "swapped": _swapped(old, new, facts, after),
        "stale": (
            *_stale_messages(new, facts, set(foreign), is_on_path),
            *_stale_texts(before, after),
        ),
    }
    patterns = _patterns(found, old)
    if not patterns:
        patterns = (_growth(before, added, facts),)
    return Difference(patterns, **found)  # type: ignore[arg-type]  # one type each, by name


def _patterns(found: Mapping[str, Any], old: list[UUID]) -> tuple[Pattern, ...]:
    seen: list[Pattern] = []
    if found["foreign"]:
        seen.append("foreign")
    if found["twice"]:
        seen.append("twice")
    if found["swapped"]:
        seen.append("swapped")
    if found["stale"]:
        seen.append("stale_revision")
    if found["vanished"]:
        unexplained = {id_ for id_, reason in found["vanished"] if reason == "not_found"}
        is_clipped = bool(unexplained) and unexplained == set(old[: len(unexplained)])
        seen.append("clipped" if is_clipped else "vanished")
    return tuple(seen)


def _growth(
    before: Document, added: tuple[UUID, ...], facts: Mapping[UUID, MessageFacts]
) -> Pattern:
    if not added:
        return "unchanged"
    if len(added) == 1:
        return "one_new"
    earlier = str(before.get("turn_id"))
    first, second = facts[added[0]], facts[added[1]]
    follows = str(first.turn_id) == earlier and first.role == "assistant"
    return "two_new" if len(added) == 2 and follows and second.seq > first.seq else "several_new"  # noqa: PLR2004 -- one answer and one message


def _why(
    after: Document,
    id_: UUID,
    known: MessageFacts | None,
    is_on_path: Callable[[MessageFacts], bool],
) -> str:
    """Why a message that was shown is shown no longer."""
    named = exclusions(after).get(id_)
    if known is None or (named is not None and not known.is_deleted):
        return named or "not_found"
    base_seq = int(after["history"]["base_seq"])
    reasons = {
        "deleted": known.is_deleted,
        "superseded": str(known.superseded_by) in after["message_ids"],
        "other_branch": not is_on_path(known),
        "budget": is_trimmed(after, known.seq),
        "later": known.seq >= base_seq,
    }
    return next((reason for reason, holds in reasons.items() if holds), "not_found")


def _twice(new: list[UUID], facts: Mapping[UUID, MessageFacts]) -> tuple[UUID, ...]:
    counted = Counter(new)
    speakers = Counter((facts[id_].turn_id, facts[id_].role) for id_ in counted if id_ in facts)
    return tuple(
        id_
        for id_, times in counted.items()
        if times > 1 or (id_ in facts and speakers[facts[id_].turn_id, facts[id_].role] > 1)
    )


def _swapped(
    old: list[UUID], new: list[UUID], facts: Mapping[UUID, MessageFacts], after: Document
) -> tuple[UUID, ...]:
    common = [id_ for id_ in old if id_ in set(new)]
    now = [id_ for id_ in dict.fromkeys(new) if id_ in set(common)]
    moved = [a for a, b in zip(dict.fromkeys(common), now, strict=False) if a != b]
    history = [id_ for id_ in dict.fromkeys(new) if id_ in facts and not _is_own(after, id_)]
    highest = 0
    for id_ in history:
        if facts[id_].seq < highest:
            moved.append(id_)
        highest = max(highest, facts[id_].seq)
    return tuple(dict.fromkeys(moved))


def _is_own(after: Document, id_: UUID) -> bool:
    """Whether a message is the turn's own: what it answers, and what it goes on from."""
    return any(
        block["layer"] == "current" and block["id"] == str(id_) for block in after.get("blocks", ())
    )


def _stale_messages(
    new: list[UUID],
    facts: Mapping[UUID, MessageFacts],
    foreign: set[UUID],
    is_on_path: Callable[[MessageFacts], bool],
) -> list[str]:
    """Messages beside the one that was said instead, and those of a branch that was left."""
    shown = set(new)
    return [
        str(id_)
        for id_ in dict.fromkeys(new)
        if id_ not in foreign and (facts[id_].superseded_by in shown or not is_on_path(facts[id_]))
    ]


def _stale_texts(before: Document, after: Document) -> list[str]:
    """The operator's texts in an older version than the earlier plan shows."""
    known = {(one["kind"], one["scope"]): one for one in before.get("instructions", ())}
    texts: list[str] = []
    for one in after.get("instructions", ()):
        earlier = known.get((one["kind"], one["scope"]))
        if earlier is not None and _is_older(str(one["version"]), str(earlier["version"])):
            texts.append(str(one["id"]))
    return texts


def _is_older(version: str, than: str) -> bool:
    """Numbers count up; other names have no order."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)
