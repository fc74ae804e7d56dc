"""What a check came to: how often each promise was looked at, and what was found broken."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

PROMISES: Mapping[str, tuple[str, ...]] = {
    "P1": ("one_turn_per_key",),
    "P2": ("one_terminal_per_turn",),
    "P3": ("no_accepted_turn_lost",),
    "P4": ("stream_equals_store",),
    "P5": ("serial_per_conversation", "policy_kept"),
    "P7": (
        "current_turn_once_in_plan",
        "superseded_excluded",
        "plan_within_budget",
        "plan_deterministic",
    ),
    "P8": ("tenant_isolation",),
    "gone": ("deleted_is_gone",),
    "rest": ("at_rest", "recovery_in_time", "cancelled_in_time"),
    "proof": ("canary_seen",),
}
"""Names of promises, as metrics and reports say them; ``proof`` shows that a check can see."""

NAMES = frozenset(name for names in PROMISES.values() for name in names)


@dataclass(slots=True)
class Verdict:
    """What was checked, and what was found broken."""

    checked: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def check(self, promise: str, *, holds: bool, otherwise: str) -> None:
        """Count one item of a promise, and note it where it does not hold."""
        self.checked[promise] += 1
        if not holds:
            self.broken.append(f"{promise}: {otherwise}")

    def require(self, **at_least: int) -> None:
        """Fail unless nothing is broken and each promise was checked often enough."""
        assert not self.broken, "\n".join(self.broken[:20])
        missed = too_few(self.checked, at_least)
        assert not missed, "; ".join(missed)

    def report(self) -> str:
        """One line a promise: on how many items it was checked, and how many broke it."""
        return table(self.checked, Counter(line.partition(":")[0] for line in self.broken))


def too_few(checked: Mapping[str, int], at_least: Mapping[str, int]) -> list[str]:
    """Complaints about promises that were looked at less often than declared.

    Raises:
        KeyError: A promise of that name is not known, so nobody would ever check it.
    """
    for name in at_least:
        if name not in NAMES:
            raise KeyError(name)
    return [
        f"{name} was checked on {checked.get(name, 0)} items, not on {count}"
        for name, count in at_least.items()
        if checked.get(name, 0) < count
    ]


def table(checked: Mapping[str, int], broken: Mapping[str, int]) -> str:
    """What ``Verdict.report`` prints; a promise that nobody looked at says so."""
    lines = []
    for promise, names in PROMISES.items():
        for name in names:
            count = checked.get(name, 0)
            told = f"checked on {count} items" if count else "not checked"
            if broken.get(name):
                told += f", {broken[name]} BROKEN"
            lines.append(f"{promise:<6}{name:<28}{told}")
    return "\n".join(lines)
