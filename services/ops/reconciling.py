"""Compares rows, outboxes and topics, and says what differs. Changes nothing.

What it finds is mended by the services' own sweeps; a difference that stays is a fault, and the
words beside it say where to look.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from libs.kafka.records import RawRecord
from libs.operating import end_ids
from libs.postgres import Database
from libs.postgres.queries import load_queries
from schemas.errors import UnreadableRecord
from schemas.registry import TURN_EVENTS, decode
from schemas.turns import ConversationPurgedV1, TurnEndedV1
from services.ops.bars import Bar
from services.ops.operations import Operations
from services.ops.replaying import NOWHERE, PAGE, turn_page
from services.ops.topic_reader import TopicReader

SETTLE_S = 60.0
"""Younger differences are work under way: an event on its way, a sweep that has not come yet."""

MAX_LOOKED_AT = 5_000  # rows of work and steps in one run
MAX_TOLD = 200  # differences told one by one; the rest is counted
_SQL = load_queries("services.ops")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that does not fit.

    Attributes:
        kind: Short name, the same for all of its kind.
        where: What is compared with what.
    """

    kind: str
    where: str
    subject: str
    detail: str

    def document(self) -> dict[str, str]:
        """As it is printed."""
        return asdict(self)


@dataclass(slots=True)
class _Told:
    """What the topic says.

    Attributes:
        firsts: Partition -> time of its oldest readable record.
        ended: Turn -> state it was told to have ended in.
    """

    firsts: dict[int, datetime] = field(default_factory=dict)
    ended: dict[UUID, str] = field(default_factory=dict)
    purged: set[UUID] = field(default_factory=set)
    records: int = 0

    @property
    def since(self) -> datetime | None:
        """From when on every partition knows everything; None for an empty topic."""
        return max(self.firsts.values(), default=None)


@dataclass(slots=True)
class Report:
    """What was compared, and what differs."""

    turns: int = 0
    records: int = 0
    found: list[Difference] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, differences: Iterator[Difference]) -> None:
        """Count them, and keep the first ones."""
        for one in differences:
            self.counts[one.kind] += 1
            if len(self.found) < MAX_TOLD:
                self.found.append(one)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "turns": self.turns,
            "records": self.records,
            "counts": dict(self.counts),
            "differences": [one.document() for one in self.found],
        }


async def reconcile(shown: Bar, operations: Operations) -> Report:
    """Compare everything that can be compared from outside.

    Raises:
        QueueUnavailable: No broker, so that nothing can be said of topics.
    """
    report = Report()
    # The time and what waits come first: an event leaves its outbox for the topic, so whatever had
    # been decided by then is in one of the two, however long the topic takes to be read.
    now = await operations.reads.now()
    waiting = await operations.reads.outbox(MAX_LOOKED_AT)
    told = await _told(shown, operations)
    report.records = told.records
    events = {UUID(row["event_id"]) for row in waiting}
    since = told.since if len(waiting) < MAX_LOOKED_AT else None  # else more wait than are known
    known: set[UUID] = set()
    after = (NOWHERE, NOWHERE)
    shown.stage("Comparing turns")
    while True:
        rows = await turn_page(operations.database, after)
        report.turns += len(rows)
        report.add(turn_differences(rows, told.ended, since=since, events=events, now=now))
        known.update(row["turn_id"] for row in rows if row["turn_id"] in told.ended)
        shown.advance(len(rows))
        if len(rows) < PAGE:
            break
        after = (rows[-1]["tenant_id"], rows[-1]["turn_id"])
    strange = set(told.ended) - known - told.purged
    report.add(
        Difference("event_without_turn", "turn.events / turns", str(turn), "no row has this turn")
        for turn in sorted(strange)
    )
    report.add(await _leftovers(operations.database, now))
    report.add(outbox_differences(waiting, await operations.reads.outbox_dead()))
    return report


async def _told(shown: Bar, operations: Operations) -> _Told:
    told = _Told()
    async with TopicReader.opened(operations.settings, TURN_EVENTS) as reader:
        shown.stage(f"Reading {TURN_EVENTS}", total=reader.stretch.count_from({}))
        async for batch in reader.batches({}):
            for record in batch:
                _note(told, record)
            told.records += len(batch)
            shown.advance(len(batch))
    return told


def _note(told: _Told, record: RawRecord) -> None:
    try:
        event = decode(record.value)
    except UnreadableRecord:
        return  # a foreign producer's; its consumers have set it aside
    told.firsts.setdefault(record.partition, event.occurred_at)
    if isinstance(event.data, TurnEndedV1):
        told.ended.setdefault(event.turn_id, event.data.status)
    elif isinstance(event.data, ConversationPurgedV1):
        told.purged.update(event.data.turn_ids)


def turn_differences(
    rows: Sequence[Mapping[str, Any]],
    ended: Mapping[UUID, str],
    *,
    since: datetime | None,
    events: set[UUID],
    now: datetime,
) -> Iterator[Difference]:
    """What is wrong with turns by themselves, and beside what the topic says of them.

    Args:
        since: From when on the topic knows everything.
        events: Ids of events that still wait in an outbox.
    """
    settled = now - timedelta(seconds=SETTLE_S)
    for row in rows:
        turn, is_over = row["turn_id"], row["ended_at"] is not None
        name = str(turn)
        if is_over == row["is_open"]:
            detail = f"the turn is {row['status']}, and the list of open turns says otherwise"
            yield Difference("open_turn", "turns / open_turns", name, detail)
        said = ended.get(turn)
        if said is not None and said != row["status"]:
            detail = f"the row says {row['status']}, the topic {said}"
            yield Difference("other_end", "turns / turn.events", name, detail)
        is_due = is_over and since is not None and since < row["ended_at"] < settled
        if is_due and said is None and events.isdisjoint(end_ids(turn)):
            detail = "it ended, and neither the topic nor the outbox has its end"
            yield Difference("end_not_told", "turns / turn.events", name, detail)


async def _leftovers(database: Database, now: datetime) -> Iterator[Difference]:
    """Work and steps of turns that have ended or are not there."""
    values = {"max_rows": MAX_LOOKED_AT}
    work = await database.fetch(_SQL["work"], values)
    steps = await database.fetch(_SQL["open_steps"], values)
    ids = list({row["turn_id"] for row in (*work, *steps)})
    states = await database.fetch(_SQL["turn_states"], {"turn_ids": ids})
    ended_at = {row["turn_id"]: row["ended_at"] for row in states}
    settled = now - timedelta(seconds=SETTLE_S)

    def found() -> Iterator[Difference]:
        for rows, kind, where in (
            (work, "work_left", "llm_gateway.work / turns"),
            (steps, "step_left", "context_assembly.steps / turns"),
        ):
            for row in rows:
                if row["turn_id"] not in ended_at:
                    detail = "no row has this turn"
                    yield Difference(kind, where, str(row["turn_id"]), detail)
                    continue
                over = ended_at[row["turn_id"]]
                if over is not None and over < settled:
                    detail = f"{row['state']} though the turn has ended"
                    yield Difference(kind, where, str(row["turn_id"]), detail)

    return found()


def outbox_differences(
    waiting: Sequence[Mapping[str, Any]], refused: Sequence[Mapping[str, Any]]
) -> Iterator[Difference]:
    """Events that wait for too long, and those that the broker will never take."""
    for row in waiting:
        if row["age_s"] > SETTLE_S:
            detail = f"{row['type']} waits for {row['age_s']:.0f} s in {row['service']}"
            yield Difference("outbox_old", "outbox / topics", row["event_id"], detail)
    for row in refused:
        detail = f"{row['type']} of {row['service']}: {row['error']}"
        yield Difference("outbox_refused", "outbox / topics", row["event_id"], detail)
