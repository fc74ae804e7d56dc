"""How the sections of a prompt share its budget: floors, ceilings, and who is served first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from schemas.prompt_plan import SECTIONS, Section
from services.context_assembly.core.candidates import by_age, by_score, in_prompt_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from services.context_assembly.core.candidates import Candidate, DataGroup


class SectionRule(NamedTuple):
    """What a section may use, in tokens.

    Attributes:
        floor: Kept free for it while others are filled, if it has anything to show.
        ceiling: The most it may use; None is all that is left.
        priority: A lower number is filled earlier. The system policy, the workspace's instructions
            and the current message are never trimmed and come before all others.
    """

    section: Section
    floor: int = 0
    ceiling: int | None = None
    priority: int = 0


TRIMMED: Final[tuple[Section, ...]] = ("summary", "memory", "retrieved", "tools", "history")
"""Sections that give way, in the order they are filled unless their rules say otherwise."""

DEFAULT_RULES: Final[tuple[SectionRule, ...]] = tuple(
    SectionRule(section, priority=TRIMMED.index(section) + 1 if section in TRIMMED else 0)
    for section in SECTIONS
)
"""Without a catalogue's word: no floor, no ceiling, history last. In the prompt's order."""

KEPT_FIRST: Final[Mapping[Section, Callable[[Iterable[DataGroup]], list[DataGroup]]]] = {
    "summary": by_age,
    "memory": by_score,
    "retrieved": by_score,
    "tools": by_age,
}
"""Which groups of a data layer stay when not all fit: the first that does not fit ends it."""


class Filled(NamedTuple):
    """Groups of a data layer that fit, and those that do not."""

    shown: tuple[Candidate, ...]
    left_out: tuple[Candidate, ...]
    tokens: int


def fill(section: Section, groups: Sequence[DataGroup], budget_tokens: int) -> Filled:
    """Take whole groups of one data layer, best first, until one does not fit.

    More budget keeps the same groups and possibly more.
    """
    preferred = KEPT_FIRST[section](groups)
    used = 0
    count = 0
    for group in preferred:
        if used + group.tokens > budget_tokens:
            break
        used += group.tokens
        count += 1
    left_out = tuple(member for group in preferred[count:] for member in group.members)
    return Filled(in_prompt_order(preferred[:count]), left_out, used)


def served_order(rules: Sequence[SectionRule]) -> list[SectionRule]:
    """Sections that give way, in the order they are filled."""
    yielding = [rule for rule in rules if rule.section in TRIMMED]
    yielding.sort(key=lambda rule: (rule.priority, TRIMMED.index(rule.section)))
    return yielding


def open_to(rule: SectionRule, left: int, floors_of_later: int) -> int:
    """Tokens a section may use when it is its turn, at least 0."""
    room = max(0, left - floors_of_later)
    return room if rule.ceiling is None else min(rule.ceiling, room)
