"""The printed figures, which are the benchmark page as well."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from tests.bench.bench_house import SERVICES, STORES
from tests.bench.driver import TURNS_PER_CONVERSATION
from tests.bench.machine import commit, describe, percentile
from tests.bench.measuring import (
    HISTORY_TOKENS,
    LONG_HISTORY,
    SHORT_HISTORY,
    WARM_UP_S,
    Level,
    Report,
)

GOAL_TURNS_PER_S = 120.0
GOAL_FIRST_MS = 20.0
GOAL_FIRST_P99_MS = 250.0
GOAL_CPU_MS = 12.0
GOAL_GROWTH = 1.3

INTRODUCTION = """\
# What a turn costs

Written by `make bench`; figures of another machine or another hour differ. The provider is a
scripted one that answers 32 tokens at once, so what is measured is Turnwire. Everything, the
provider and the driver included, runs on this machine at the same time: Postgres with `fsync`,
`synchronous_commit` and `full_page_writes` on, Kafka with `acks=all`, metrics and tracing on
without an exporter, log level INFO."""

METHOD = f"""\
Clients work in a closed loop over one kept connection each: a message is posted with
`Accept: text/event-stream`, and the next one leaves when the answer was read to its end and
verified (text, one `done`, status, length, hash). Each client has conversations of its own and
takes a fresh one, made before the clock runs, after {TURNS_PER_CONVERSATION} turns.
{WARM_UP_S:.0f} s of warming up come first. At the end the rows are compared with what the clients
saw."""


def render(report: Report) -> str:
    """The whole page."""
    now = datetime.now(UTC)
    parts = [
        INTRODUCTION,
        f"Date {now:%Y-%m-%d %H:%M} UTC, commit {commit()}, {describe()}. A 4 KiB write with "
        f"fdatasync in the data folder: {report.fsync.p50:.2f} ms (p50), {report.fsync.p99:.2f} ms "
        f"(p99). A fixed loop of Python took {report.speed_ms:.0f} ms; figures of two runs compare "
        "as far as this number is the same and other processes were quiet.",
        METHOD,
    ]
    goals = list(_goals(report))
    if goals:
        parts += ["## Goals", _table(("goal", "wanted", "found", ""), goals)]
    if report.levels:
        parts += ["## Rates and first token", _rates(report.levels)]
        parts += ["## CPU by process", CPU_NOTE, _cpu(report.levels)]
    if report.history_ms:
        rows = [(f"{n}", f"{ms:.1f} ms") for n, ms in report.history_ms.items()]
        note = f"Messages of {HISTORY_TOKENS} tokens, window 8,192; 1 client, p50."
        parts += ["## Length of the history", note, _table(("messages", "first token"), rows)]
    if report.hops:
        parts += ["## Where the time of a turn goes", HOPS_NOTE]
        hops = [(hop.name, f"{hop.ms:.1f} ms") for hop in report.hops]
        parts.append(_table(("leg", "median"), hops))
    parts += ["## Memory", MEMORY_NOTE, _memory(report)]
    turns = report.checked.get("one_terminal_per_turn", 0)
    parts.append(
        f"{turns} turns were compared with their rows at the end, and nothing was found broken."
    )
    return "\n\n".join(parts) + "\n"


CPU_NOTE = "Milliseconds of CPU per turn; Postgres with all backends."
HOPS_NOTE = (
    "One client, turns one after the other. Times are those of the rows (the beginning of each "
    "transaction), of the provider's record and of the driver."
)
MEMORY_NOTE = "At the end of the run, with children. PSS counts shared pages once over all."


def _goals(report: Report) -> Iterator[Sequence[str]]:
    by_clients = {level.clients: level for level in report.levels}
    if 32 in by_clients:
        level = by_clients[32]
        rate, cpu, p99 = level.turnwire.per_s, _own_cpu(level), level.over(99)
        yield _goal(
            "turns/s, 32 clients",
            f">= {GOAL_TURNS_PER_S:.0f}",
            f"{rate:.0f}",
            rate >= GOAL_TURNS_PER_S,
        )
        yield _goal(
            "CPU of services and stores a turn, 32 clients",
            f"<= {GOAL_CPU_MS:.0f} ms",
            f"{cpu:.1f} ms",
            cpu <= GOAL_CPU_MS,
        )
        yield _goal(
            "first token over the provider, p99, 32 clients",
            f"<= {GOAL_FIRST_P99_MS:.0f} ms",
            f"{p99:.0f} ms",
            p99 <= GOAL_FIRST_P99_MS,
        )
    if 1 in by_clients:
        p50 = by_clients[1].over(50)
        yield _goal(
            "first token over the provider, p50, 1 client",
            f"<= {GOAL_FIRST_MS:.0f} ms",
            f"{p50:.1f} ms",
            p50 <= GOAL_FIRST_MS,
        )
    if report.history_ms:
        growth = report.history_ms[LONG_HISTORY] / report.history_ms[SHORT_HISTORY]
        yield _goal(
            f"first token at {LONG_HISTORY} over {SHORT_HISTORY} messages",
            f"<= {GOAL_GROWTH:g}",
            f"{growth:.2f}",
            growth <= GOAL_GROWTH,
        )


def _goal(name: str, wanted: str, found: str, is_met: bool) -> Sequence[str]:
    return name, wanted, found, "met" if is_met else "missed"


def _rates(levels: Sequence[Level]) -> str:
    head = (
        "clients", "turns/s", "provider alone/s", "first token p50", "p99",
        "over the provider p50", "p99", "whole answer p50", "p99", "other processes",
    )  # fmt: skip
    rows = []
    for level in levels:
        ours, direct = level.turnwire, level.direct
        whole = ours.whole_ms
        rows.append((
            f"{level.clients}", f"{ours.per_s:.1f}", f"{direct.per_s:.0f}",
            _ms(percentile(ours.first_ms, 50)), _ms(percentile(ours.first_ms, 99)),
            _ms(level.over(50)), _ms(level.over(99)),
            _ms(percentile(whole, 50)), _ms(percentile(whole, 99)),
            f"{level.foreign_share:.0%} of the CPU",
        ))  # fmt: skip
    return _table(head, rows)


def _cpu(levels: Sequence[Level]) -> str:
    head = ("process", *(f"{level.clients} clients" for level in levels))
    names = (*SERVICES, *STORES)
    rows = [(name, *(f"{level.cpu_ms[name]:.2f}" for level in levels)) for name in names]
    rows.append(("**services and stores**", *(f"**{_own_cpu(level):.2f}**" for level in levels)))
    apart = ("provider", "driver")
    rows += [(name, *(f"{level.cpu_ms[name]:.2f}" for level in levels)) for name in apart]
    return _table(head, rows)


def _memory(report: Report) -> str:
    rows = [(n, f"{m.rss:.0f} MiB", f"{m.pss:.0f} MiB") for n, m in report.memory.items()]
    return _table(("process", "RSS", "PSS"), rows)


def _own_cpu(level: Level) -> float:
    return sum(level.cpu_ms[name] for name in (*SERVICES, *STORES))


def _ms(value: float) -> str:
    return f"{value:.1f} ms"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
