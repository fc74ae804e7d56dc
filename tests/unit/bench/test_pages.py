"""A run of minutes must not fail while its page is written, and the page tells what was found."""

from tests.bench.arithmetic import Delays
from tests.bench.backlog import BacklogResult
from tests.bench.bench_house import SERVICES, STORES
from tests.bench.driver import Samples
from tests.bench.hops import Hop
from tests.bench.hub_alone import HubResult
from tests.bench.lengths import LengthResult
from tests.bench.live import Heard, LiveResult
from tests.bench.machine import Fsync, Memory
from tests.bench.measuring import Level, OpenLevel, Report
from tests.bench.open_loop import OpenSamples
from tests.bench.page import first_token_goal, render
from tests.bench.peer import page as peer_page
from tests.bench.peer.comparing import KINDS, Comparison, Side
from tests.bench.peer.comparing import Level as PeerLevel
from tests.bench.recovery import Recovery
from tests.bench.soak import Soak
from tests.bench.soak import render as render_soak

ALL = (*SERVICES, *STORES, "provider", "driver")
FSYNC = Fsync(0.5, 2.0)


def _samples(turns: int, first_ms: float) -> Samples:
    return Samples(10.0, turns, [first_ms] * 100, [first_ms * 2] * 100)


def _level(clients: int, turns: int, first_ms: float, cpu_ms: float) -> Level:
    cpu = dict.fromkeys(ALL, cpu_ms)
    return Level(clients, _samples(turns * 50, 1.0), _samples(turns, first_ms), cpu, 0.01)


def _report() -> Report:
    memory = {name: Memory(100.0, 60.0, 40.0) for name in ALL}
    heard = Heard(Delays([5.0, 40.0]), streams=300)
    return Report(
        FSYNC,
        68.0,
        levels=[_level(1, 300, 11.0, 2.0), _level(8, 900, 60.0, 1.0)],
        open_level=OpenLevel(
            50.0,
            100.0,
            OpenSamples(20.0, 1000, Delays([20.0]), Delays([30.0]), Delays([10.0]), 3),
            _samples(9000, 0.5),
            dict.fromkeys(ALL, 1.0),
        ),
        lengths=LengthResult({10: Delays([20.0]), 400: Delays([26.0])}, {10: 11, 400: 162}),
        hops=[Hop("client to topic", 4.0)],
        live=LiveResult(300, 60.0, heard, heard, dict.fromkeys(ALL, 0.2), memory, memory),
        hub=HubResult(1000, 10.0, 100_000, 0, 1.8, 51.0, 60.0, 0.3, 60.0),
        backlog=BacklogResult(100_000, 100_000, 20.0, 100_003),
        recoveries=[Recovery("kafka", 5.0, 6.0, 6, 7.0, 1)],
        memory_at_rest=memory,
        memory_at_load=memory,
        checked={"one_terminal_per_turn": 17},
    )


def test_the_page_of_a_whole_run_judges_every_goal() -> None:
    page = render(_report())
    goals = [line for line in page.splitlines() if line.endswith(("| met |", "| missed |"))]
    assert [line.split(" | ")[-1] for line in goals] == [
        "met |",  # 10 ms over the provider at one client
        "met |",  # 7 processes at 1 ms each
        "missed |",  # 1.3 times
        "met |",  # 40 ms
        "missed |",  # 51 ms
    ]
    assert "5,000 rows/s" in page
    assert "1/50" in page  # of the provider's rate
    assert "17 turns were compared" in page


def test_the_page_of_a_run_that_measured_one_thing_has_only_that() -> None:
    page = render(Report(FSYNC, 68.0, hops=[Hop("client to topic", 4.0)]))
    assert "client to topic" in page
    assert "## Goals" not in page
    assert "## Rates" not in page


def test_one_lost_event_misses_the_goal_of_the_live_streams() -> None:
    report = _report()
    assert report.live is not None
    report.live.turnwire.gaps = 1
    [row] = [line for line in render(report).splitlines() if "live streams, and no gap" in line]
    assert row.endswith("| 40 ms, 1 | missed |")


def test_a_slow_disk_moves_the_goal_of_the_first_token_by_four_syncs() -> None:
    assert first_token_goal(Fsync(0.2, 1.0)) == 12.0
    assert first_token_goal(Fsync(3.0, 9.0)) == 20.0


def test_the_peers_page_judges_each_kind_and_keeps_the_sides_apart() -> None:
    side = Side(_samples(1000, 20.0), dict.fromkeys(ALL, 1.0))
    peers = {
        kind: Side(_samples(150, 100.0), {**dict.fromkeys(ALL, 0.0), kind: 6.0}) for kind in KINDS
    }
    level = PeerLevel(32, side, peers, _samples(90_000, 0.5), 0.01)
    memory = {name: Memory(100.0, 60.0, 40.0) for name in (*ALL, *KINDS)}
    page = peer_page.render(Comparison(FSYNC, 68.0, [level], memory), seconds=10)
    goals = [line for line in page.splitlines() if line.endswith(("| met |", "| missed |"))]
    assert len(goals) == 3 * len(KINDS)
    assert all(line.endswith("| met |") for line in goals)
    assert "| 32 | peer, httpx | 15.0 | 100.0 ms |" in page
    assert "langgraph 1." in page


def test_the_soaks_page_finds_the_service_that_grows() -> None:
    soak = Soak(FSYNC, 68.0, 30.0, 600.0, OpenSamples(600.0, 18_000, Delays([20.0])), turns=18_000)
    for n in range(120):
        at = n * 5.0
        memory = {name: 100.0 + (at / 30 if name == "ingestion" else 0) for name in ALL}
        soak.note(soak.memory, memory, at)
        soak.note(soak.tables, {"ingestion.turns": 1024 * 1024 + at * 30 * 700}, at)
        soak.note(soak.others, {"records that consumers lag behind": 3.0}, at)
    page = render_soak(soak)
    assert "at most (ingestion) | <= 30 MiB an hour | 120.0 MiB | missed |" in page
    assert "growth of the consumers' lag | <= 600 records an hour | 0 | met |" in page
    assert "| ingestion.turns | 1.0 MiB | 12.9 MiB | 700 |" in page
