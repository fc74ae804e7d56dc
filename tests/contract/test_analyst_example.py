"""The example for analysts keeps its table over repeats, kills and any order of the topics."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import duckdb
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from libs.kafka.publisher import KafkaPublisher, Record
from libs.kafka.topics import TopicSpec, apply_topics
from schemas.envelope import Data, Envelope, Event, encode
from schemas.registry import EVENTS_OF_TOPIC
from schemas.steps import StepPlannedV1
from schemas.topic_files import load_topics
from schemas.topics_page import duration
from schemas.turns import TurnAcceptedV1, TurnEndedV1
from schemas.usage import Usage

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "turns_by_tenant.py"
MOST_LINES = 40
TABLES_EDGE = "\u2502".encode()
"""Stands between the columns of a table that DuckDB shows, and in no error."""

PARTITIONS = 2
AT = datetime(2026, 3, 1, tzinfo=UTC)
PLANNING, ANSWERING = timedelta(seconds=1), timedelta(seconds=3)
ALL = "select turns, completed, failed, plans, input, output from tenants order by turns"


@dataclass
class Analyst:
    """Two topics, and the example that reads them into a file."""

    publisher: KafkaPublisher
    brokers: str
    topics: tuple[str, str]
    file: Path
    sent: int = 0

    async def publish(self, topic: int, *events: Event[Data]) -> None:
        """Send events as the services do, keyed by conversation."""
        records = [
            Record(self.topics[topic], str(event.conversation_id).encode(), encode(event), ())
            for event in events
        ]
        assert await self.publisher.publish(records) == [None] * len(records)
        self.sent += len(records)

    async def read_all(self) -> None:
        """Run the example, and kill it whenever it has shown a table, until it has read all."""
        async with asyncio.timeout(90):
            while self.read() < self.sent:
                with self.running() as process:
                    await asyncio.to_thread(_wait_for_a_table, process)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """The example as a process of its own, killed without a warning at the end."""
        topics = {"TOPICS": ",".join(self.topics), "KAFKA_BOOTSTRAP_SERVERS": self.brokers}
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLE), str(self.file)],
            env={**os.environ, **topics, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        """Rows of the file, while nobody writes it."""
        with duckdb.connect(str(self.file)) as database:
            return database.sql(sql).fetchall()

    def read(self) -> int:
        """Records that the file has seen."""
        if not self.file.exists():
            return 0
        places = self.ask("select coalesce(sum(next), 0)::bigint from places")
        return int(str(places[0][0]))


def _wait_for_a_table(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    seen = b""
    while TABLES_EDGE not in seen:
        line = process.stdout.readline()
        assert line, f"the example ended: {seen.decode()}"
        seen += line


@pytest.fixture
async def analyst(kafka_url: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[Analyst]:
    topics = (f"{topic_prefix}turn.events", f"{topic_prefix}context.events")
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_url)
    await admin.start()
    try:
        await apply_topics(admin, [TopicSpec(topic, PARTITIONS, 1, {}) for topic in topics])
    finally:
        await admin.close()
    publisher = KafkaPublisher(kafka_url, client_id="test", timeout_s=20)
    await publisher.start()
    try:
        yield Analyst(publisher, kafka_url, topics, tmp_path / "turns.duckdb")
    finally:
        await publisher.stop()


def turn(tenant: int, *, status: str = "completed") -> tuple[list[Event[Data]], list[Event[Data]]]:
    """The events of one turn, by topic."""
    ids = {"tenant_id": UUID(int=tenant), "conversation_id": uuid4()}
    turn_id = uuid4()

    def event(source: str, data: Data, at: datetime = AT) -> Event[Data]:
        return Event(
            id=uuid4(),
            source=source,
            tenant_id=ids["tenant_id"],
            conversation_id=ids["conversation_id"],
            correlation_id=turn_id,
            occurred_at=at,
            data=data,
        )

    usage = Usage(input=100, output=10) if status == "completed" else None
    ended = TurnEndedV1(status=status, reason=None, length=5, usage=usage)  # type: ignore[arg-type]
    planned = StepPlannedV1(
        step_id=uuid4(),
        step_no=1,
        branch_id=ids["conversation_id"],
        seq=1,
        model="small",
        fingerprint="0" * 64,
        deadline_at=AT,
    )
    accepted = TurnAcceptedV1(seq=1, policy="serialize", position=0)
    is_planned = AT + PLANNING
    told = [event("ingestion", accepted), event("ingestion", ended, is_planned + ANSWERING)]
    return told, [event("context_assembly", planned, is_planned)]


DOCUMENTED = (ROOT / "docs" / "analysts.md").read_text(encoding="utf-8")


def documented(title: str) -> dict[str, set[str]]:
    """Event -> its fields, as the table below a title of the page has them."""
    _, _, behind = DOCUMENTED.partition(f"\n## {title}\n")
    fields: dict[str, set[str]] = {}
    name = ""
    for line in behind.partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and (cells[0].startswith("`") or not cells[0]):
            name = cells[0].strip("`") or name
            fields.setdefault(name, set()).update(re.findall(r"`(\w+)`", cells[1]))
    return fields


@pytest.mark.parametrize("topic", ["turn.events", "context.events"])
def test_every_event_and_every_field_of_it_is_documented(topic: str) -> None:
    told = {event.TYPE: set(event.model_fields) for event in EVENTS_OF_TOPIC[topic]}
    assert documented(topic) == told
    (file,) = (one for one in load_topics() if one.topic == topic)
    assert f"| retention | {duration(file.config['retention.ms'])}." in DOCUMENTED


def test_every_field_of_the_envelope_and_of_usage_is_documented() -> None:
    envelope, _, _ = DOCUMENTED.partition("\n## turn.events\n")
    rows = {name for row in re.findall(r"^\| (`[^|]*`) \|", envelope, re.M)
            for name in re.findall(r"`(\w+)`", row)}  # fmt: skip
    assert rows == set(Envelope.model_fields)
    (usage,) = re.findall(r"^\| \| `usage` \| (.*) \|$", DOCUMENTED, re.M)
    assert set(re.findall(r"`(\w+)`", usage)) == set(Usage.model_fields)


async def test_the_table_is_the_same_after_repeats_kills_and_a_second_reading(
    analyst: Analyst,
) -> None:
    turns = [turn(1) for _ in range(3)] + [turn(2, status="failed")]
    told = [event for ended, _ in turns for event in ended]
    planned = [event for _, plans in turns for event in plans]
    await analyst.publish(1, *planned)  # a plan may be read before its turn
    await analyst.publish(0, *told[:5])
    await analyst.read_all()
    await analyst.publish(0, *told[3:], *told)  # told again, as after a restart of a service
    await analyst.publish(1, *planned)
    await analyst.read_all()

    wanted = [(1, 0, 1, 1, None, None), (3, 3, 0, 3, 300, 30)]
    assert analyst.ask(ALL) == wanted
    assert analyst.ask("select count(*) from events") == [(len(told) + len(planned),)]
    (question,) = re.findall(r"```sql\n(.*?)```", DOCUMENTED, re.S)
    assert set(analyst.ask(question)) == {(UUID(int=n), PLANNING, ANSWERING) for n in (1, 2)}
    analyst.file.unlink()
    await analyst.read_all()
    assert analyst.ask(ALL) == wanted


def test_it_is_short_enough_to_be_read_at_once() -> None:
    lines = [line for line in EXAMPLE.read_text(encoding="utf-8").splitlines() if line.strip()]

    assert len(lines) <= MOST_LINES
