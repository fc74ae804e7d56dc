"""What ``make bench-peer`` found, as its part of the page of figures."""

from collections.abc import Iterator, Mapping, Sequence

from tests.bench.arithmetic import ratio
from tests.bench.bench_house import SERVICES, STORES
from tests.bench.machine import percentile
from tests.bench.page import machine_line
from tests.bench.page_file import GOAL_HEAD, goal, milliseconds, table
from tests.bench.peer.comparing import ROUNDS, WARM_UP_S, WORKERS, Comparison, Level
from tests.bench.peer.environment import REQUIREMENTS

GOAL_CLIENTS = 32
GOAL_RATE = 5.0
GOAL_FIRST_P99 = 0.3
GOAL_CPU = 0.35
NAMED = ("langgraph", "langgraph-checkpoint-postgres", "langchain-openai", "fastapi", "uvicorn")
TITLES: Mapping[str, str] = {"chat_openai": "peer, ChatOpenAI", "httpx": "peer, httpx"}


def render(found: Comparison, *, seconds: float) -> str:
    """The part of the page that ``make bench-peer`` owns."""
    parts = [
        "## Beside the backend most teams would write",
        _introduction(seconds),
        machine_line(found.fsync, found.speed_ms),
    ]
    goals = [
        row for level in found.levels if level.clients == GOAL_CLIENTS for row in _goals(level)
    ]
    if goals:
        parts.append(table(GOAL_HEAD, goals))
    parts += [_figures(found.levels), _ratios(found.levels), _shares(found.levels)]
    own = sum(found.memory[name].pss for name in (*SERVICES, *STORES))
    workers = ", ".join(f"{t} {found.memory[kind].pss:.0f} MiB" for kind, t in TITLES.items())
    parts.append(
        f"PSS at the end: {workers}; Postgres (for all) {found.memory['postgres'].pss:.0f} MiB; "
        f"Turnwire's services and stores {own:.0f} MiB."
    )
    return "\n\n".join(parts)


def _introduction(seconds: float) -> str:
    pinned = dict(
        line.partition("==")[::2] for line in REQUIREMENTS.read_text().splitlines() if "==" in line
    )
    versions = {name.partition("[")[0]: version for name, version in pinned.items()}
    named = ", ".join(f"{name} {versions[name]}" for name in NAMED)
    return f"""\
Written by `make bench-peer`. The peer is LangGraph's library behind FastAPI, in two kinds
({named}).
Both are one graph of one node, with the history kept by `AsyncPostgresSaver` over an async pool
under a thread's id (default durability), and send tokens as server-sent events while they come.
*ChatOpenAI* calls the model as the library's own pages do, through langchain-openai over the
vendor's client, streamed with `stream_mode="messages"`. *httpx* is what a team makes of it that has
looked at its profile: the node reads the model's stream with httpx itself and hands tokens to
`stream_mode="custom"`. Each has {WORKERS} uvicorn workers with uvloop and httptools, no access log,
eight graphs in each worker so that the saver's one-at-a-time lock does not hold requests up, a
database of its own in the same Postgres with the same settings, the same scripted provider, and the
same clients in the same loop. They check no key and keep no plan, and an answer that is under way
when they are killed is lost; Turnwire does all its work.

All run on one machine all the time and are asked in turns, {ROUNDS} windows of {seconds:.0f} s each
for every number of clients, after {WARM_UP_S:.0f} s of warming up for each. A peer's CPU is that of
its workers and of Postgres, without what Postgres uses when nobody asks; Turnwire's is that of all
services and all stores, idling included."""


def _goals(level: Level) -> Iterator[Sequence[str]]:
    for kind in level.peers:
        rate, first, cpu = _three(level, kind)
        against = f"{TITLES[kind]}, {level.clients} clients"
        yield goal(
            f"turns/s over {against}",
            f">= {GOAL_RATE:g}",
            f"{rate:.2f}",
            is_met=rate >= GOAL_RATE,
        )
        yield goal(
            f"first token p99 over {against}",
            f"<= {GOAL_FIRST_P99:g}",
            f"{first:.2f}",
            is_met=first <= GOAL_FIRST_P99,
        )
        yield goal(
            f"CPU a turn over {against}",
            f"<= {GOAL_CPU:g}",
            f"{cpu:.2f}",
            is_met=cpu <= GOAL_CPU,
        )


def _three(level: Level, kind: str) -> tuple[float, float, float]:
    ours, theirs = level.turnwire.samples, level.peers[kind].samples
    return (
        ratio(ours.per_s, theirs.per_s),
        ratio(percentile(ours.first_ms, 99), percentile(theirs.first_ms, 99)),
        ratio(level.turnwire_cpu_ms, level.peer_cpu_ms(kind)),
    )


def _figures(levels: Sequence[Level]) -> str:
    head = (
        "clients", "", "turns/s", "first token p50", "p99", "whole answer p50", "CPU a turn",
        "provider alone / it, turns/s",
    )  # fmt: skip
    rows = []
    for level in levels:
        sides = [("Turnwire", level.turnwire, level.turnwire_cpu_ms)]
        sides += [(TITLES[k], side, level.peer_cpu_ms(k)) for k, side in level.peers.items()]
        for name, side, cpu in sides:
            samples = side.samples
            rows.append((
                f"{level.clients}", name, f"{samples.per_s:.1f}",
                milliseconds(percentile(samples.first_ms, 50)),
                milliseconds(percentile(samples.first_ms, 99)),
                milliseconds(percentile(samples.whole_ms, 50)), milliseconds(cpu),
                f"{ratio(level.provider.per_s, samples.per_s):.0f}",
            ))  # fmt: skip
    return table(head, rows)


def _ratios(levels: Sequence[Level]) -> str:
    head = ("clients", "Turnwire over", "turns/s", "first token p50", "p99", "CPU a turn")
    rows = []
    for level in levels:
        ours = level.turnwire.samples
        for kind, side in level.peers.items():
            rate, first, cpu = _three(level, kind)
            half = ratio(percentile(ours.first_ms, 50), percentile(side.samples.first_ms, 50))
            figures = (f"{figure:.2f}" for figure in (rate, half, first, cpu))
            rows.append((f"{level.clients}", TITLES[kind], *figures))
    return table(head, rows)


def _shares(levels: Sequence[Level]) -> str:
    head = (
        "clients", "CPU a turn of", "its processes", "Postgres", "Kafka and Valkey",
        "Postgres idling, of one core",
    )  # fmt: skip
    rows = []
    for level in levels:
        ours, idle = level.turnwire, f"{level.idle_postgres:.1%}"
        shares = (
            ours.cpu_ms(*SERVICES),
            ours.cpu_ms("postgres"),
            ours.cpu_ms("kafka", "valkey"),
        )
        rows.append((f"{level.clients}", "Turnwire", *map(milliseconds, shares), idle))
        for kind, side in level.peers.items():
            shares = (side.cpu_ms(kind), side.cpu_ms("postgres"), 0.0)
            rows.append((f"{level.clients}", TITLES[kind], *map(milliseconds, shares), idle))
    return table(head, rows)
