"""A benchmark of streams is worth something only if it notices what is missing."""

from time import perf_counter

import orjson
import pytest

from schemas.streams import Entry, EntryId, content_delta, generating
from services.frontend_gateway.core.sse import frame
from tests.bench.driver import Samples
from tests.bench.live import Counting, Heard
from tests.bench.paced import deltas_of, request_text
from tests.bench.peer.comparing import Level, Side

COUNT = 4


def _delta(number: int, at: float, *, n: int | None = None) -> bytes:
    return frame(content_delta(EntryId(1, n or number + 2), f"{number}@{at:.6f} "))


def _done(status: str = "completed") -> bytes:
    return frame(Entry(EntryId(2_147_483_647, 1), "done", orjson.dumps({"status": status})))


def _read(*frames: bytes, cut: int = 0) -> Heard:
    heard = Heard()
    counting = Counting(heard, COUNT)
    raw = bytearray()
    whole = frame(generating(1)) + b"".join(frames)
    for piece in (whole[:cut], whole[cut:]):
        raw += piece
        used, _ = counting.turnwire(raw, perf_counter())
        del raw[:used]
    return heard


def test_a_whole_stream_has_nothing_missing_wherever_its_packets_are_cut() -> None:
    at = perf_counter()
    frames = [*(_delta(number, at) for number in range(COUNT)), _done()]
    for cut in range(len(b"".join(frames))):
        heard = _read(*frames, cut=cut)
        assert (heard.streams, heard.missing, heard.gaps, heard.broken) == (1, 0, 0, 0)
        assert len(heard.delays.ms) == COUNT


def test_a_delay_is_counted_from_the_moment_that_the_provider_wrote() -> None:
    heard = _read(*(_delta(number, perf_counter() - 0.25) for number in range(COUNT)), _done())
    assert min(heard.delays.ms) >= 249


def test_several_pieces_in_one_entry_are_several_pieces() -> None:
    at = perf_counter()
    both = content_delta(EntryId(1, 2), f"0@{at:.6f} 1@{at:.6f} ")
    heard = _read(frame(both), _delta(2, at, n=3), _delta(3, at, n=4), _done())
    assert (heard.missing, heard.gaps) == (0, 0)


@pytest.mark.parametrize("lost", range(COUNT))
def test_a_lost_entry_is_seen_in_its_text_and_in_its_id(lost: int) -> None:
    at = perf_counter()
    heard = _read(*(_delta(n, at) for n in range(COUNT) if n != lost), _done())
    assert heard.missing == 1
    assert heard.gaps == (lost != COUNT - 1)  # nothing of the attempt comes after the last one


def test_a_doubled_entry_is_seen() -> None:
    at = perf_counter()
    heard = _read(_delta(0, at), _delta(0, at), *(_delta(n, at) for n in (1, 2, 3)), _done())
    assert heard.missing == 1
    assert heard.gaps == 1


def test_a_turn_that_did_not_complete_is_a_broken_stream() -> None:
    at = perf_counter()
    assert _read(*(_delta(n, at) for n in range(COUNT)), _done("partial")).broken == 1


def test_a_request_for_a_pace_names_number_and_interval() -> None:
    assert request_text(600, 100) == "speak 600 every 100"
    assert deltas_of(b"7@1.500000 8@1.600000 ") == [(7, 1.5), (8, 1.6)]


def test_the_peer_is_not_charged_for_what_postgres_uses_when_nobody_asks() -> None:
    peer = Side(Samples(seconds=10, turns=100), {"httpx": 2.0, "postgres": 1.5})
    names = ("frontend_gateway", "ingestion", "context_assembly", "llm_gateway")
    stores = ("postgres", "kafka", "valkey")
    ours = Side(Samples(seconds=10, turns=100), dict.fromkeys((*names, *stores), 0.1))
    level = Level(32, ours, {"httpx": peer}, Samples(), idle_postgres=0.05)
    assert level.peer_cpu_ms("httpx") == pytest.approx(20 + 15 - 5)
    assert level.turnwire_cpu_ms == pytest.approx(7.0)


def test_windows_of_one_side_add_up() -> None:
    side = Side()
    for turns in (30, 50):
        side.add(Samples(seconds=4, turns=turns, first_ms=[1.0] * turns), {"peer": 1.0})
    assert side.samples.per_s == 10
    assert len(side.samples.first_ms) == 80
    assert side.cpu_ms("peer") == 25
