"""The table of turns follows from what is told, in any order, and forgets what was purged."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from schemas.envelope import Data, Event, encode
from schemas.turns import ConversationPurgedV1, TurnAcceptedV1, TurnEndedV1
from services.ops.failures import CommandFailed
from services.ops.projections import TurnFact, TurnTable
from services.ops.replaying import facts_of
from services.ops.topic_reader import Stretch

AT = datetime(2026, 3, 1, tzinfo=UTC)
KEPT, GONE = UUID(int=1), UUID(int=2)
ACCEPTED = TurnAcceptedV1(seq=1, policy="serialize", position=0)
ENDED = TurnEndedV1(status="completed", reason=None, length=5)


@dataclass(frozen=True)
class Record:
    value: bytes | None
    topic: str = "turn.events"
    partition: int = 0
    offset: int = 0
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def record(turn: UUID, data: Data) -> Record:
    event = Event(
        id=UUID(int=turn.int + 100),
        source="ingestion",
        tenant_id=UUID(int=7),
        conversation_id=UUID(int=8),
        correlation_id=turn,
        occurred_at=AT,
        data=data,
    )
    return Record(encode(event))


def take(table: TurnTable, records: Iterable[Record]) -> None:
    table.take("topic", facts_of(list(records)), {}, is_last=False)


def test_a_purged_turn_is_in_no_list_and_does_not_come_back(tmp_path: Path) -> None:
    told = [record(turn, data) for turn in (KEPT, GONE) for data in (ACCEPTED, ENDED)]
    purged = record(UUID(int=8), ConversationPurgedV1(turn_ids=(GONE,)))
    with TurnTable.opened(tmp_path / "turns.sqlite") as table:
        take(table, told)
        assert sum(row[3] for row in table.totals()) == 2
        take(table, [purged])
        take(table, told)  # told again, as after a restart
        assert table.turns() == [(str(KEPT), "completed", None, 5)]
        assert [row[1:] for row in table.totals()] == [("completed", None, 1)]


def test_what_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    with TurnTable.opened(tmp_path / "turns.sqlite") as table:
        take(table, [Record(b"{"), Record(None), record(KEPT, ACCEPTED)])
        assert table.turns() == [(str(KEPT), "accepted", None, None)]


def test_a_crash_loses_facts_and_their_place_together(tmp_path: Path) -> None:
    fact = TurnFact("t", "a", "c", "completed")
    path = tmp_path / "turns.sqlite"
    with TurnTable.opened(path) as table:
        table.take("topic", [fact], {"0": "1"}, is_last=False)

        def failing() -> Iterable[TurnFact]:
            yield TurnFact("u", "a", "c", "completed")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            table.take("topic", failing(), {"0": "2"}, is_last=False)
    with TurnTable.opened(path) as table:
        assert table.place("topic") == ({"0": "1"}, False)
        assert [row[0] for row in table.turns()] == ["t"]


@pytest.mark.parametrize("wrong", ["text", "folder", "below a file"])
def test_a_file_that_is_none_is_named(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("no database\n" * 100)
    path = {"text": file, "folder": tmp_path, "below a file": file / "turns.sqlite"}[wrong]
    with pytest.raises(CommandFailed, match="--out"), TurnTable.opened(path):
        pass
    assert file.read_text().startswith("no database")


def test_reading_goes_on_where_it_was_unless_the_topic_is_another_one() -> None:
    stretch = Stretch(begins={0: 10, 1: 0, 2: 5}, ends={0: 30, 1: 4, 2: 5})
    assert stretch.starts({0: 20, 1: 900}) == {0: 20, 1: 0, 2: 5}
    assert stretch.count_from({0: 20, 1: 900}) == 14
    assert stretch.starts({0: 3}) == {0: 10, 1: 0, 2: 5}  # retention took what was next
