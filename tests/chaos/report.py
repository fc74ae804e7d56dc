"""What a run prints: one JSON line, and what a person needs to look further."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.chaos.campaign import Outcome
from tests.chaos.house import SHOWN_CHARS
from tests.chaos.recovery import percentile
from tests.chaos.validity import TURNS_FOR_EVERY_CHANGE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
TABLE_END = "<!-- runs end -->"
SLOW_MACHINE = 1.3
"""How much longer than its lane's time a run may take before it is called too slow."""

SHOWN = 40
"""Broken sentences that are printed; the rest is counted."""


def is_good(outcome: Outcome) -> bool:
    """Nothing broken, and valid."""
    return not outcome.broken and not complaints(outcome)


def complaints(outcome: Outcome) -> list[str]:
    """Why the run may not be believed."""
    touched, wanted = len(outcome.recovery.touched_s), outcome.lane.min_touched
    is_long = outcome.load.accepted >= TURNS_FOR_EVERY_CHANGE
    unjudged = is_long and not outcome.verdict.checked["cancelled_in_time"]
    late = outcome.seconds > outcome.lane.bound_s * SLOW_MACHINE
    return [
        *outcome.validity.complaints,
        *(f"a fault could not be played: {text}" for text in outcome.timeline.failures),
        *([f"only {touched} turns met a death and nothing else"] if touched < wanted else []),
        *(["no turn was cancelled outside fault windows"] if unjudged else []),
        *([f"the run took {outcome.seconds:.0f} s"] if late else []),
    ]


def line(outcome: Outcome) -> dict[str, Any]:
    """The figures of a run."""
    load, recovery, verdict = outcome.load, outcome.recovery, outcome.verdict
    by_promise = Counter(text.partition(":")[0] for text in verdict.broken)
    streams = [text for text in verdict.broken if text.startswith("stream_equals_store")]
    ops = Counter(one.ok for one in load.operations)
    return {
        "run": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": _commit(),
        "lane": outcome.lane.name,
        "seed": outcome.seed,
        "seconds": round(outcome.seconds),
        "faults": dict(sorted(Counter(i.kind for i in outcome.timeline.injections).items())),
        "deaths": outcome.deaths,
        "gave_up": len(outcome.surprises),
        "ops": {"ok": ops[True], "fail": ops[False]},
        "statuses": {str(status): n for status, n in sorted(load.statuses.items())},
        "habits": dict(sorted(load.habits.items())),
        "changes": dict(sorted(load.changes.items())),
        "ok_outside": round(outcome.validity.ok_outside, 4),
        "ok_inside": round(outcome.validity.ok_inside, 4),
        "outside": round(outcome.validity.outside, 3),
        "turns_accepted": load.accepted,
        "terminals": dict(sorted(outcome.terminals.items())),
        "exactly_one_terminal": verdict.checked["one_terminal_per_turn"],
        "broken_terminals": by_promise["one_terminal_per_turn"],
        "duplicate_turns": by_promise["one_turn_per_key"],
        "lost_turns": by_promise["no_accepted_turn_lost"],
        "stream_gaps": sum("gap" in text for text in streams),
        "stream_repeats": sum("repeats" in text for text in streams),
        "text_mismatch": len(streams),
        "overlapping_turns": by_promise["serial_per_conversation"],
        "tenant_leaks": by_promise["tenant_isolation"],
        "deleted_shown": by_promise["deleted_is_gone"],
        "cancels_judged": verdict.checked["cancelled_in_time"],
        "late_cancels": by_promise["cancelled_in_time"],
        "recovery_p50_s": round(percentile(recovery.touched_s, 0.5), 1),
        "recovery_p99_s": round(percentile(recovery.touched_s, 0.99), 1),
        "recovery_turns": len(recovery.touched_s),
        "mixed_p99_s": round(percentile(recovery.mixed_s, 0.99), 1),
        "acceptance_max_s": round(max(recovery.acceptance_s, default=0.0), 1),
        "at_rest_s": round(recovery.at_rest_s, 1),
        "valid": not complaints(outcome),
        "broken": len(outcome.broken),
        "repeat": outcome.repeat,
    }


def text(outcome: Outcome) -> str:
    """For a person: the verdict, and of a bad run its seed and its faults."""
    parts = [outcome.verdict.report()]
    if not is_good(outcome):
        parts += [
            f"seed {outcome.seed}; repeat with: {outcome.repeat}",
            "faults, in seconds since the run's start:",
            outcome.timeline.text(),
            *(f"INVALID: {text}" for text in complaints(outcome)),
            *(f"BROKEN: {text}" for text in outcome.broken[:SHOWN]),
        ]
        if len(outcome.broken) > SHOWN:
            parts.append(f"and {len(outcome.broken) - SHOWN} more")
        parts += [
            f"{one.service} at {one.at_s:.1f} s:\n{one.log_tail[-SHOWN_CHARS:]}"
            for one in outcome.surprises
        ]
    return "\n".join(parts)


def append_row(outcome: Outcome) -> None:
    """Add the run to the table of the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, end, after = page.partition(TABLE_END)
    if not end:
        msg = f"{PAGE} has no line {TABLE_END}, where the table of runs would end"
        raise ValueError(msg)
    PAGE.write_text(f"{before}{row(line(outcome))}\n{end}{after}", encoding="utf-8")


def row(figures: dict[str, Any]) -> str:
    """One line of the page's table."""
    faults = figures["faults"]
    zero = [
        figures[name] for name in ("lost_turns", "duplicate_turns", "stream_gaps", "text_mismatch")
    ]
    cells = [
        figures["run"],
        figures["commit"],
        figures["lane"],
        figures["seed"],
        f"{figures['seconds']} s",
        f"{sum(faults.values())} of {len(faults)} kinds",
        figures["deaths"],
        figures["turns_accepted"],
        ", ".join(f"{count} {status}" for status, count in figures["terminals"].items()),
        " / ".join(map(str, [*zero, figures["tenant_leaks"]])),
        f"{figures['ok_outside']:.1%} / {figures['ok_inside']:.1%}",
        f"{figures['recovery_p50_s']} / {figures['recovery_p99_s']} s",
        f"{figures['acceptance_max_s']} s",
        f"{figures['at_rest_s']} s",
        "valid" if figures["valid"] and not figures["broken"] else "NOT VALID",
        f"`{figures['repeat']}`",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def as_json(outcome: Outcome) -> str:
    """The report line."""
    return json.dumps(line(outcome))


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )
    return done.stdout.strip() or "unknown"
