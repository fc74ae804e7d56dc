"""A short campaign in every test run: promises hold, runs repeat, and broken houses are caught."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.sim import faults
from tests.sim.campaign import (
    Campaign,
    Case,
    Style,
    kept_cases,
    kept_names,
    parse_faults,
    play,
    prepared_server,
    report,
)
from tests.sim.mutants import MUTANTS, Mutant, changed_text

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

SEEDS = [Case(seed) for seed in range(1, 25)]
SEEDS_FOR_A_MUTANT = [Case(seed) for seed in range(1, 61)]
BREAKS = {
    "no_inbox": "at_rest",
    "no_fence_on_the_final_write": "one_terminal_per_turn",
    "dead_workers_keep_their_work": "recovery_in_time",
    "history_has_no_boundary": "superseded_excluded",
    "keys_are_not_remembered": "no_accepted_turn_lost",
    "outbox_is_not_swept": "at_rest",
    "the_queue_is_not_seen": "serial_per_conversation",
    "branches_show_what_they_part_from": "superseded_excluded",
    "deleted_messages_stay": "deleted_is_gone",
    "snapshots_lack_their_end": "stream_equals_store",
}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, str]]:
    with prepared_server() as prepared:
        yield prepared


def test_every_promise_holds_under_the_faults_of_the_first_seeds(server: tuple[str, str]) -> None:
    campaign = play([*kept_cases(), *SEEDS], workers=2, server=server)

    assert not campaign.failed, campaign.failed[0]
    assert len(campaign.played) >= len(SEEDS)
    assert campaign.ends.total() >= 60
    assert campaign.checked["stream_equals_store"] >= 180
    assert campaign.checked["plan_deterministic"] >= 120
    assert campaign.checked["deleted_is_gone"] >= 10
    assert campaign.checked["canary_seen"] >= 200
    assert campaign.hits.total() >= 50


def test_a_seed_has_the_same_trace_in_two_processes_in_other_company_and_with_every_look(
    server: tuple[str, str],
) -> None:
    one = play([Case(3), Case(1), Case(2)], server=server)
    other = play([Case(2), Case(3)], style=Style(spares_looks=False), server=server)

    assert other.played == {seed: one.played[seed] for seed in ("2", "3")}
    assert len(set(one.played.values())) == 3


@pytest.mark.parametrize("name", sorted(BREAKS))
def test_a_broken_house_breaks_its_promise(server: tuple[str, str], name: str) -> None:
    style = Style(name, most_failures=1, shrinks=False)
    campaign = play([*kept_cases(name), *SEEDS_FOR_A_MUTANT], style=style, server=server)

    assert len(campaign.failed) == 1
    # What stays behind may be the words of a deleted message too: the first promise is not asked.
    assert BREAKS[name] in {told.partition(":")[0] for told in campaign.failed[0]["broken"]}


def test_a_failing_seed_is_shrunk_and_told_with_its_promise(
    server: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    faults = ("process/crash@40(0.1)", "redis.bell/dropped@2(0.3)", "kafka.poll/repeat@9(0.5)")
    style = Style("history_has_no_boundary", most_failures=1)
    campaign = play([Case(seed, faults) for seed in range(1, 9)], style=style, server=server)

    assert report(campaign) == 1
    (told,) = campaign.failed
    printed = capsys.readouterr().out
    assert f"seed {told['seed']} FAILS with the faults none" in printed
    assert "first promise broken: superseded_excluded: " in printed
    assert "superseded_excluded         checked on" in printed
    assert f"replay: python -m tests.sim --seed {told['seed']} --only" in printed


def test_a_campaign_that_saw_too_little_fails(capsys: pytest.CaptureFixture[str]) -> None:
    hits = Counter({"provider/hang": 1})
    campaign = Campaign(played={str(seed): "" for seed in range(400)}, hits=hits)

    assert report(campaign) == 1
    printed = capsys.readouterr().out
    assert "seen too little: plan_deterministic was checked on 0 items, not on 2400" in printed
    assert "client/resume" in printed
    assert "provider/cut, provider/refused" in printed
    assert "never hit: process, call, lease" in printed
    assert "operator/archive" in printed
    assert "during cancel" in printed


def test_kept_cases_are_those_of_broken_houses_or_once_failed() -> None:
    assert {"no_fence_on_the_final_write", "dead_workers_keep_their_work"} <= set(kept_names())
    for name in kept_names():
        for case in kept_cases(name):
            assert len(parse_faults(case.only or ())) == len(case.only or ())


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
