"""A short campaign in every test run: promises hold, runs repeat, and broken houses are caught."""

from collections.abc import Iterator

import pytest

from tests.sim import faults
from tests.sim.campaign import kept_seeds, parse_faults, play, prepared_server
from tests.sim.mutants import MUTANTS, Mutant, changed_text

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

SEEDS = range(1, 25)
SEEDS_FOR_A_MUTANT = range(1, 61)
BREAKS = {
    "no_inbox": "at_rest",
    "keys_are_not_remembered": "no_accepted_turn_lost",
    "outbox_is_not_swept": "at_rest",
    "the_queue_is_not_seen": "serial_per_conversation",
    "snapshots_lack_their_end": "stream_equals_store",
}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, str]]:
    with prepared_server() as prepared:
        yield prepared


def test_every_promise_holds_under_the_faults_of_the_first_seeds(server: tuple[str, str]) -> None:
    campaign = play([*kept_seeds(), *SEEDS], workers=2, server=server)

    assert not campaign.failed, campaign.failed[0]
    assert len(campaign.played) >= len(SEEDS)
    assert campaign.ends.total() >= 60
    assert campaign.checked["stream_equals_store"] >= 180
    assert campaign.hits.total() >= 50


def test_a_seed_has_the_same_trace_in_two_processes_and_in_other_company(
    server: tuple[str, str],
) -> None:
    one = play([3, 1, 2], server=server)
    other = play([2, 3], server=server)

    assert other.played == {seed: one.played[seed] for seed in (2, 3)}
    assert len(set(one.played.values())) == 3


@pytest.mark.parametrize("name", sorted(BREAKS))
def test_a_broken_house_breaks_its_promise(server: tuple[str, str], name: str) -> None:
    campaign = play(SEEDS_FOR_A_MUTANT, mutant=name, server=server, most_failures=1)

    assert [told["broken"][0].partition(":")[0] for told in campaign.failed] == [BREAKS[name]]


def test_every_mutant_names_the_promise_that_it_breaks() -> None:
    assert set(BREAKS) == set(MUTANTS)


def test_a_mutant_whose_text_is_gone_is_refused() -> None:
    mutant = Mutant("libs.inbox", "seen", {"no such text": ""})

    with pytest.raises(ValueError, match="no such text"):
        changed_text(mutant, "select 1")


def test_a_printed_fault_is_read_back_as_the_same_fault() -> None:
    drawn = [fault for seed in range(50) for fault in faults.draw(seed)]

    assert parse_faults([str(fault) for fault in drawn]) == tuple(drawn)


def test_no_two_faults_of_a_seed_strike_the_same_use_of_a_port() -> None:
    for seed in range(200):
        drawn = faults.draw(seed)
        assert len({(fault.port, fault.nth) for fault in drawn}) == len(drawn)
        assert len(drawn) <= faults.STORM_FAULTS
