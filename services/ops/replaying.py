"""Rebuilds a projection from Postgres or from its topic, and goes on where it was stopped."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from libs.kafka.records import RawRecord
from libs.postgres import Database
from libs.postgres.queries import load_queries
from schemas.envelope import Event
from schemas.errors import UnreadableRecord
from schemas.registry import TURN_EVENTS, decode
from schemas.turns import ConversationPurgedV1, TurnAcceptedV1, TurnEndedV1, TurnStartedV1
from services.ops.bars import Bar
from services.ops.failures import CommandFailed, ExitCode
from services.ops.operations import Operations
from services.ops.projections import EFFECTS, PROJECTIONS, PURGED, Source, TurnFact, TurnTable
from services.ops.topic_reader import TopicReader

PAGE = 1_000  # turns of one page: some milliseconds, and what a crash repeats at most
NOWHERE = UUID(int=0)
_SQL = load_queries("services.ops")


def check_replayable(name: str) -> None:
    """Do nothing for a projection.

    Raises:
        CommandFailed: It has effects, or there is no such thing.
    """
    if name in PROJECTIONS:
        return
    if name in EFFECTS:
        msg = (
            f"{name} is no projection: it {EFFECTS[name]}, and a replay would do it again. "
            "To have one record handled again, use `turnwire dlq redrive`."
        )
        raise CommandFailed(msg, exit_code=ExitCode.CONFLICT)
    msg = f"There is no projection {name}. There are: {', '.join(PROJECTIONS)}."
    raise CommandFailed(msg, exit_code=ExitCode.USAGE)


async def replay(
    shown: Bar, operations: Operations, path: Path, source: Source, *, again: bool
) -> dict[str, Any]:
    """Rebuild the projection ``turns`` into a file.

    Args:
        again: Begin at the beginning, though the file is complete or half-done.

    Raises:
        CommandFailed: The file cannot be used.
        QueueUnavailable: No broker, where the source is the topic.
    """
    with TurnTable.opened(path) as table:
        if again:
            table.clear()
        place, is_complete = table.place(source)
        taken = 0
        if source == "topic":
            taken = await _from_topic(shown, operations, table, place)
        elif not is_complete:
            taken = await _from_postgres(shown, operations.database, table, place)
        totals: dict[str, int] = {}
        for _, state, _, number in table.totals():
            totals[state] = totals.get(state, 0) + number
        return {
            "projection": "turns",
            "source": source,
            "file": str(path),
            "resumed": bool(place) and not is_complete,
            "was_complete": is_complete,
            "read": taken,
            "turns": totals,
        }


async def _from_postgres(
    shown: Bar, database: Database, table: TurnTable, place: Mapping[str, str]
) -> int:
    after = (UUID(place["tenant"]), UUID(place["turn"])) if place else (NOWHERE, NOWHERE)
    taken = 0
    shown.stage("Reading turns")
    while True:
        rows = await turn_page(database, after)
        if rows:
            after = (rows[-1]["tenant_id"], rows[-1]["turn_id"])
        facts = [fact_of_row(row) for row in rows]
        reached = {"tenant": str(after[0]), "turn": str(after[1])}
        table.take("postgres", facts, reached, is_last=len(rows) < PAGE)
        taken += len(rows)
        shown.advance(len(rows))
        if len(rows) < PAGE:
            return taken


async def turn_page(database: Database, after: tuple[UUID, UUID]) -> Sequence[Mapping[str, Any]]:
    """The next turns in the order of their key: tenant, then turn."""
    values = {"after_tenant": after[0], "after_turn": after[1], "max_rows": PAGE}
    return await database.fetch(_SQL["turn_page"], values)


async def _from_topic(
    shown: Bar, operations: Operations, table: TurnTable, place: Mapping[str, str]
) -> int:
    places = {int(number): int(offset) for number, offset in place.items()}
    async with TopicReader.opened(operations.settings, TURN_EVENTS) as reader:
        shown.stage(f"Reading {TURN_EVENTS}", total=reader.stretch.count_from(places))
        taken = 0
        async for batch in reader.batches(places):
            for record in batch:
                places[record.partition] = record.offset + 1
            reached = {str(number): str(offset) for number, offset in places.items()}
            table.take("topic", facts_of(batch), reached, is_last=False)
            taken += len(batch)
            shown.advance(len(batch))
        return taken


def facts_of(records: Sequence[RawRecord]) -> Iterator[TurnFact]:
    """What records tell of turns; those that cannot be read tell nothing."""
    for record in records:
        try:
            event = decode(record.value)
        except UnreadableRecord:
            continue
        yield from facts_of_event(event)


def facts_of_event(event: Event[Any]) -> Iterator[TurnFact]:
    """What an event tells of its turn, or of those that went with their conversation."""
    where = (str(event.tenant_id), str(event.conversation_id))
    turn = str(event.turn_id)
    match event.data:
        case TurnAcceptedV1():
            yield TurnFact(turn, *where, state="accepted")
        case TurnStartedV1():
            yield TurnFact(turn, *where, state="started")
        case TurnEndedV1(status=status, reason=reason, length=length, usage=usage):
            tokens = (usage.input, usage.output) if usage is not None else (None, None)
            yield TurnFact(turn, *where, status, reason, length, *tokens)
        case ConversationPurgedV1(turn_ids=turn_ids):
            yield from (TurnFact(str(gone), *where, state=PURGED) for gone in turn_ids)


def fact_of_row(row: Mapping[str, Any]) -> TurnFact:
    """The same from the turn's own row."""
    names = (str(row["turn_id"]), str(row["tenant_id"]), str(row["conversation_id"]))
    if row["ended_at"] is None:
        return TurnFact(*names, state="accepted" if row["started_at"] is None else "started")
    usage = row["usage"] or {}
    tokens = (usage.get("input"), usage.get("output"))
    return TurnFact(*names, row["status"], row["reason"], row["length"], *tokens)
