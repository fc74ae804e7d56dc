"""What loops are known to find is what they would find; anything else is asked for."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from libs.postgres import Row, Statement, load_queries
from tests.sim.looks import AHEAD_S, LOOKS, Looks, Writer, Writing

BY_FUNCTION = {
    # What it reads beside is only read for the rows of its function.
    ("services.context_assembly", "silent_steps"),
    ("services.ingestion", "uncounted_ends"),
}
"""Their texts name a function instead of the tables that it reads."""

PURGE = Writer("ingestion", "op_purge", "delete from turns where true; perform op_other(1)")
OTHER = Writer("llm_gateway", "op_other", "update work set state = 'ready'")


def statement(package: str, name: str, **values: Any) -> Statement:
    return load_queries(package)[name], values


SWEEP = [statement("services.ingestion", "overdue_turns", grace_s=1, max_rows=2)]
OWN = [statement("services.llm_gateway", "own_running", worker_id=1)]
STATUS = [statement("libs.outbox", "status")]


def asked(looks: Looks, schema: str, statements: Sequence[Statement], found: list[Row]) -> None:
    glance = looks.glance(schema, statements)
    assert glance is not None
    assert glance.rows_at(5.0) is None
    glance.found(5.0, [found])


def known(looks: Looks, schema: str, statements: Sequence[Statement], now_s: float) -> Any:
    glance = looks.glance(schema, statements)
    assert glance is not None
    return glance.rows_at(now_s)


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("insert into turns (id) values (1)", {"ingestion.turns"}),
        ("select 1 from turns -- delete from turns\n for update of turns skip locked", set()),
        ("insert into a values (1) on conflict do update set b = 1", {"ingestion.a"}),
        ("with x as (delete from\n a) update b.c set d = 1", {"ingestion.a", "b.c"}),
        ("select op_purge(1)", {"ingestion.turns", "llm_gateway.work"}),
    ],
)
def test_what_a_statement_writes_is_read_from_its_text(text: str, tables: set[str]) -> None:
    assert Writing([PURGE, OTHER]).tables_of("ingestion", text) == tables


def test_nothing_ahead_is_nothing_until_then_or_until_somebody_writes() -> None:
    looks = Looks(Writing([]))
    asked(looks, "ingestion", SWEEP, [])

    assert known(looks, "ingestion", SWEEP, 5.0 + AHEAD_S) == [[]]
    assert known(looks, "ingestion", SWEEP, 5.1 + AHEAD_S) is None
    assert known(looks, "context_assembly", SWEEP, 5.0) is None

    looks.wrote("ingestion", ["update turns set id = 1"])
    assert known(looks, "ingestion", SWEEP, 5.0) == [[]]
    looks.wrote("ingestion", ["update open_turns set id = 1"])
    assert known(looks, "ingestion", SWEEP, 5.0) is None


def test_what_is_there_ahead_is_asked_for_at_the_present_until_somebody_writes() -> None:
    looks = Looks(Writing([]))
    asked(looks, "ingestion", SWEEP, [{"turn_id": 1}])

    again = looks.glance("ingestion", SWEEP)
    assert again is not None
    assert not again.is_worth_asking
    looks.forget()
    later = looks.glance("ingestion", SWEEP)
    assert later is not None
    assert later.is_worth_asking


def test_rows_that_no_time_changes_are_known_for_good_and_zeros_are_nothing() -> None:
    looks = Looks(Writing([]))
    asked(looks, "llm_gateway", OWN, [{"step_id": 1, "attempt": 2}])
    asked(looks, "ingestion", STATUS, [{"pending": 0, "oldest_s": 0.0}])
    asked(looks, "llm_gateway", STATUS, [{"pending": 1, "oldest_s": 0.0}])

    rows = known(looks, "llm_gateway", OWN, 1e9)
    assert rows == [[{"step_id": 1, "attempt": 2}]]
    rows[0][0].clear()  # whoever gets them may do with them what he likes
    assert known(looks, "llm_gateway", OWN, 1e9) == [[{"step_id": 1, "attempt": 2}]]
    assert known(looks, "ingestion", STATUS, 1e9) == [[{"pending": 0, "oldest_s": 0.0}]]
    assert known(looks, "llm_gateway", STATUS, 5.0) is None


def test_a_transaction_that_does_more_than_look_is_none() -> None:
    looks = Looks(Writing([]))

    assert looks.glance("ingestion", [*SWEEP, ("select 1", {})]) is None
    assert Looks(Writing([]), spares=False).glance("ingestion", SWEEP) is None


@pytest.mark.parametrize(("package", "name"), sorted(set(LOOKS) - BY_FUNCTION))
def test_a_look_names_every_table_that_its_statement_reads(package: str, name: str) -> None:
    text = re.sub(r"--[^\n]*", "", load_queries(package)[name])
    made_here = {"unnest", "lateral", *re.findall(r"(\w+) as \(", text)}
    read = set(re.findall(r"\b(?:(?<!epoch )from|join|(?<!for )update) ([a-z_.]+)", text))

    assert read - made_here == set(LOOKS[package, name].reads)
