"""What ``make bench`` found, as its part of the page of figures."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from tests.bench.arithmetic import ratio
from tests.bench.bench_house import SERVICES, STORES
from tests.bench.driver import TURNS_PER_CONVERSATION
from tests.bench.lengths import HISTORY_TOKENS
from tests.bench.live import CALLS_AT_ONCE
from tests.bench.machine import Fsync, commit, describe, percentile
from tests.bench.measuring import LONGER_ALONE, OPEN_CLIENTS, WARM_UP_S, Level, Report
from tests.bench.page_file import GOAL_HEAD, goal, milliseconds, table

GOAL_FIRST_MS = 12.0
GOAL_FIRST_SLOW_DISK_MS = 8.0
GOAL_FSYNCS = 4
FAST_FSYNC_MS = 1.0
GOAL_CPU_MS = 8.0
GOAL_GROWTH = 1.25
GOAL_LIVE_P99_MS = 100.0
GOAL_HUB_P99_MS = 50.0
SHORT, LONG = 10, 400

INTRODUCTION = """\
Written by `make bench`; figures of another machine or another hour differ. The provider is a
scripted one that answers 32 tokens at once, so what is measured is Turnwire. Everything, the
provider and the driver included, runs on this machine at the same time: Postgres with `fsync`,
`synchronous_commit` and `full_page_writes` on, Kafka with `acks=all`, metrics and tracing on
without an exporter, log level INFO. Beside each figure stands what the provider alone gives the
same clients in the same run, and the ratio of both: it compares with other machines, milliseconds
do not."""

METHOD = f"""\
Clients work in a closed loop over one kept connection each: a message is posted with
`Accept: text/event-stream`, and the next one leaves when the answer was read to its end and
verified (text, one `done`, status, length, hash). Each client has conversations of its own and
takes a fresh one, made before the clock runs, after {TURNS_PER_CONVERSATION} turns.
{WARM_UP_S:.0f} s of warming up come first. The window of one client alone is {LONGER_ALONE} times
as long as the others. At the end the rows are compared with what the clients saw."""

CPU_NOTE = "Milliseconds of CPU per turn; Postgres with all backends."
OPEN_NOTE = f"""\
Users do not wait for each other: turns start at random moments (exponential gaps) at half of the
rate that the closed loop reached, over at most {OPEN_CLIENTS} connections. Waits count from the
moment at which a turn should have started, so a stall shows in every turn that it held up; the last
row shows what counting from the sending would have said."""
LENGTH_NOTE = f"""\
Messages of {HISTORY_TOKENS} tokens, window 8,192; 1 client, all lengths asked in turns. All but the
first turn of such a conversation are copies of that turn's rows."""
HOPS_NOTE = (
    "One client, turns one after the other. Times are those of the rows (the beginning of each "
    "transaction), of the provider's record and of the driver."
)
LIVE_NOTE = f"""\
The provider sends ten pieces a second into every stream and writes the moment into each; the delay
is from there to the client's socket. One process of each service; llm_gateway may hold
{CALLS_AT_ONCE} calls. A piece that is missing, doubled or out of order, and an entry id that does
not follow the one before, would be counted."""
HUB_NOTE = """\
The hub in a process of its own, one reader for each turn, entries written to Valkey by the script
that llm_gateway uses; without HTTP. Writer, Valkey and hub share the machine."""
BACKLOG_NOTE = """\
Rows of 600 bytes under 1,000 keys, as an outage of the broker leaves them behind, brought to a
topic of their own by the relay of one running ingestion process."""
RECOVERY_NOTE = """\
SIGKILL under six clients whose answers take half a second, started again at once. "Whole answer
again" is from the kill to the end of the first whole answer to a message sent after it; "running
turns ended" is from the kill until the last turn that it touched had ended, with how many those
were. "With a part" are those of which only what had been shown was kept, because their llm_gateway
died or could not renew its lease."""
MEMORY_NOTE = """\
With children, in MiB. PSS counts shared pages once over all. At rest is after the start, at load
the most seen after one of the windows above."""


def render(report: Report) -> str:
    """The part of the page that ``make bench`` owns."""
    parts = [INTRODUCTION, machine_line(report.fsync, report.speed_ms), METHOD]
    goals = list(_goals(report))
    if goals:
        parts += ["## Goals", table(GOAL_HEAD, goals)]
    if report.levels:
        parts += ["## Rates and first token", _rates(report.levels), _ratios(report.levels)]
        parts += ["## CPU by process", CPU_NOTE, _cpu(report.levels)]
    parts += [
        *_open_loop(report),
        *_lengths(report),
        *_hops(report),
        *_live(report),
        *_hub(report),
        *_backlog(report),
        *_recoveries(report),
        "## Memory",
        MEMORY_NOTE,
        _memory(report),
    ]
    turns = report.checked.get("one_terminal_per_turn", 0)
    parts.append(
        f"{turns} turns were compared with their rows at the end, and nothing was found broken."
    )
    return "\n\n".join(parts)


def machine_line(fsync: Fsync, speed_ms: float) -> str:
    """When, what and on which machine."""
    return (
        f"Date {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit()}, {describe()}. A 4 KiB "
        f"write with fdatasync in the data folder: {fsync.p50:.2f} ms (p50), {fsync.p99:.2f} ms "
        f"(p99). A fixed loop of Python took {speed_ms:.0f} ms; figures of two runs compare as far "
        "as this number is the same and other processes were quiet."
    )


def _goals(report: Report) -> Iterator[Sequence[str]]:
    by_clients = {level.clients: level for level in report.levels}
    if 1 in by_clients:
        p50, wanted = by_clients[1].over(50), first_token_goal(report.fsync)
        yield goal(
            "first token over the provider, p50, 1 client",
            f"<= {wanted:.1f} ms",
            f"{p50:.1f} ms",
            is_met=p50 <= wanted,
        )
    if 8 in by_clients:
        cpu = own_cpu(by_clients[8])
        yield goal(
            "CPU of services and stores a turn, 8 clients",
            f"<= {GOAL_CPU_MS:.0f} ms",
            f"{cpu:.1f} ms",
            is_met=cpu <= GOAL_CPU_MS,
        )
    if report.lengths is not None and (growth := report.lengths.growth(LONG, SHORT)):
        yield goal(
            f"first token at {LONG} over {SHORT} messages",
            f"<= {GOAL_GROWTH:g}",
            f"{growth:.2f}",
            is_met=growth <= GOAL_GROWTH,
        )
    if (live := report.live) is not None:
        p99, lost = live.turnwire.delays.p(99), live.turnwire.missing + live.turnwire.gaps
        yield goal(
            f"delay of an event, p99, {live.streams} live streams, and no gap",
            f"<= {GOAL_LIVE_P99_MS:.0f} ms, 0",
            f"{p99:.0f} ms, {lost + live.turnwire.broken}",
            is_met=p99 <= GOAL_LIVE_P99_MS and lost + live.turnwire.broken == 0,
        )
    if (hub := report.hub) is not None:
        yield goal(
            f"delay of an event, p99, {hub.streams:,} streams at the hub, and no gap",
            f"<= {GOAL_HUB_P99_MS:.0f} ms, 0",
            f"{hub.p99_ms:.0f} ms, {hub.missing}",
            is_met=hub.p99_ms <= GOAL_HUB_P99_MS and hub.missing == 0,
        )


def first_token_goal(fsync: Fsync) -> float:
    """12 ms over the provider, or 8 ms and four syncs where the disk is slow."""
    if fsync.p50 <= FAST_FSYNC_MS:
        return GOAL_FIRST_MS
    return max(GOAL_FIRST_MS, GOAL_FIRST_SLOW_DISK_MS + GOAL_FSYNCS * fsync.p50)


def _rates(levels: Sequence[Level]) -> str:
    head = (
        "clients", "turns/s", "first token p50", "p99", "over the provider p50", "p99",
        "whole answer p50", "p99", "other processes",
    )  # fmt: skip
    rows = []
    for level in levels:
        ours = level.turnwire
        rows.append((
            f"{level.clients}", f"{ours.per_s:.1f}",
            _ms(percentile(ours.first_ms, 50)), _ms(percentile(ours.first_ms, 99)),
            _ms(level.over(50)), _ms(level.over(99)),
            _ms(percentile(ours.whole_ms, 50)), _ms(percentile(ours.whole_ms, 99)),
            f"{level.foreign_share:.0%} of the CPU",
        ))  # fmt: skip
    return table(head, rows)


def _ratios(levels: Sequence[Level]) -> str:
    head = (
        "clients", "provider alone/s", "its first token p50", "p99",
        "Turnwire's rate / provider's", "first token p50 / provider's", "p99 / provider's",
    )  # fmt: skip
    rows = []
    for level in levels:
        ours, direct = level.turnwire, level.direct
        direct50, direct99 = (percentile(direct.first_ms, p) for p in (50, 99))
        rows.append((
            f"{level.clients}", f"{direct.per_s:.0f}", f"{direct50:.2f} ms", f"{direct99:.2f} ms",
            f"1/{ratio(direct.per_s, ours.per_s):.0f}",
            f"x{ratio(percentile(ours.first_ms, 50), direct50):.0f}",
            f"x{ratio(percentile(ours.first_ms, 99), direct99):.0f}",
        ))  # fmt: skip
    return table(head, rows)


def _cpu(levels: Sequence[Level]) -> str:
    head = ("process", *(f"{level.clients} clients" for level in levels))
    names = (*SERVICES, *STORES)
    rows = [(name, *(f"{level.cpu_ms[name]:.2f}" for level in levels)) for name in names]
    rows.append(("**services and stores**", *(f"**{own_cpu(level):.2f}**" for level in levels)))
    apart = ("provider", "driver")
    rows += [(name, *(f"{level.cpu_ms[name]:.2f}" for level in levels)) for name in apart]
    return table(head, rows)


def _open_loop(report: Report) -> Iterator[str]:
    if (level := report.open_level) is None:
        return
    samples = level.samples
    cpu = sum(level.cpu_ms[name] for name in (*SERVICES, *STORES))
    yield "## Open loop"
    yield OPEN_NOTE
    percents = (50, 90, 99, 99.9)
    head = ("from the intended start", *(f"p{p:g}" for p in percents), "longest")
    kinds = (
        ("first token", samples.first),
        ("whole answer", samples.whole),
        ("first token, from the sending", samples.unaware),
    )
    rows = [(name, *(_ms(d.p(p)) for p in percents), _ms(d.longest)) for name, d in kinds]
    yield table(head, rows)
    yield (
        f"{level.wanted_per_s:.0f} turns/s of {level.most_per_s:.0f}; {samples.turns} turns, "
        f"{samples.per_s:.1f}/s done, {cpu:.1f} ms of CPU a turn. At most {samples.most_waiting} "
        "turns waited for a free connection. The provider's own first token at 1 client is "
        f"{percentile(level.direct.first_ms, 50):.2f} ms (p50): "
        f"x{ratio(samples.first.p(50), percentile(level.direct.first_ms, 50)):.0f}."
    )


def _lengths(report: Report) -> Iterator[str]:
    if report.lengths is None:
        return
    yield "## Length of the history"
    yield LENGTH_NOTE
    shortest = min(report.lengths.first)
    rows = [
        (
            f"{length:,}",
            f"{report.lengths.sent[length]}",
            _ms(first.p(50)),
            _ms(first.p(99)),
            f"x{report.lengths.growth(length, shortest):.2f}",
        )
        for length, first in report.lengths.first.items()
    ]
    head = ("messages", "sent to the model", "first token p50", "p99", f"p50 / that of {shortest}")
    yield table(head, rows)


def _hops(report: Report) -> Iterator[str]:
    if report.hops:
        yield "## Where the time of a turn goes"
        yield HOPS_NOTE
        yield table(("leg", "median"), [(hop.name, f"{hop.ms:.1f} ms") for hop in report.hops])


def _live(report: Report) -> Iterator[str]:
    if (live := report.live) is None:
        return
    yield f"## {live.streams} live streams"
    yield LIVE_NOTE
    head = ("way", "events", "delay p50", "p99", "longest", "missing", "gaps", "broken streams")
    rows = [
        (
            name,
            f"{len(heard.delays.ms):,}",
            *(_ms(ms) for ms in (heard.delays.p(50), heard.delays.p(99), heard.delays.longest)),
            *(f"{n}" for n in (heard.missing, heard.gaps, heard.broken)),
        )
        for name, heard in (("provider alone", live.direct), ("Turnwire", live.turnwire))
    ]
    yield table(head, rows)
    p50, p99 = (ratio(live.turnwire.delays.p(p), live.direct.delays.p(p)) for p in (50, 99))
    shares = ", ".join(f"{name} {share:.0%}" for name, share in live.cpu_share.items())
    memory = "; ".join(
        f"{name} {before.pss:.0f} MiB before, {live.memory_most[name].pss:.0f} MiB at most, "
        f"{(live.memory_most[name].pss - before.pss) * 1024 / live.streams:.0f} KiB a stream"
        for name, before in live.memory_before.items()
    )
    yield (
        f"{live.streams} streams x 10 events/s for {live.seconds:.0f} s. Turnwire over the "
        f"provider: x{p50:.1f} (p50), x{p99:.1f} (p99). Of one core: {shares}. PSS of {memory}."
    )


def _hub(report: Report) -> Iterator[str]:
    if (hub := report.hub) is None:
        return
    yield "## The gateway's hub alone"
    yield HUB_NOTE
    head = ("turns", "events", "delay p50", "p99", "longest", "missing", "of one core", "PSS")
    row = (
        f"{hub.streams:,}", f"{hub.delivered:,}", _ms(hub.p50_ms), _ms(hub.p99_ms),
        _ms(hub.longest_ms), f"{hub.missing}", f"{hub.cpu_share:.0%}", f"{hub.pss_mib:.0f} MiB",
    )  # fmt: skip
    yield table(head, [row])


def _backlog(report: Report) -> Iterator[str]:
    if (backlog := report.backlog) is None:
        return
    yield "## Backlog of an outbox"
    yield BACKLOG_NOTE
    yield (
        f"{backlog.drained:,} of {backlog.rows:,} rows in {backlog.seconds:.1f} s: "
        f"{backlog.per_s:,.0f} rows/s; the topic then held {backlog.records:,} records."
    )


def _recoveries(report: Report) -> Iterator[str]:
    if not report.recoveries:
        return
    yield "## After a kill"
    yield RECOVERY_NOTE
    head = ("killed", "ready again", "whole answer again", "running turns ended", "with a part")
    yield table(
        head,
        [
            (
                one.name,
                f"{one.ready_s:.1f} s",
                f"{one.whole_s:.1f} s",
                f"{one.touched_s:.1f} s ({one.touched})",
                f"{one.partial}",
            )
            for one in report.recoveries
        ],
    )


def _memory(report: Report) -> str:
    rows = []
    for name, rest in report.memory_at_rest.items():
        load = report.memory_at_load.get(name, rest)
        rows.append((name, *(f"{m:.0f}" for m in (rest.rss, rest.pss, load.rss, load.pss))))
    return table(("process", "RSS at rest", "PSS", "RSS at load", "PSS"), rows)


def own_cpu(level: Level) -> float:
    """Milliseconds of CPU per turn over services and stores."""
    return sum(level.cpu_ms[name] for name in (*SERVICES, *STORES))


_ms = milliseconds
