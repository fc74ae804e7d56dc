"""Keeps events of turns, and a table per tenant, in DuckDB: ``python turns_by_tenant.py FILE``."""

import asyncio
import os
import sys

import duckdb
from aiokafka import AIOKafkaConsumer, TopicPartition

BROKERS = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")
TOPICS = os.environ.get("TOPICS", "turn.events,context.events").split(",")
TABLES = """
create table if not exists places (topic text, part int, next bigint, primary key (topic, part));
create table if not exists events
  (id uuid primary key, type text, tenant_id uuid, turn_id uuid, told timestamptz, data json);
create or replace view tenants as select tenant_id, count_if(type = 'turn.accepted') as turns,
  count_if(data->>'status' = 'completed') as completed, count_if(type = 'step.planned') as plans,
  count_if(data->>'status' = 'failed') as failed, sum((data->>'$.usage.input')::bigint) as input,
  sum((data->>'$.usage.output')::bigint) as output from events group by all order by tenant_id"""
INSERT = """insert into events select e->>'id', e->>'type', e->>'tenant_id', e->>'correlation_id',
  e->>'occurred_at', e->'data' from (select decode(?)::json as e) on conflict do nothing"""
PLACE = "insert or replace into places values (?, ?, ?)"


async def main(file: str) -> None:
    """Go on from where the file stands, or from the beginning; never ends by itself."""
    database = duckdb.connect(file)
    database.execute(TABLES)
    # Without a group it is given all partitions, and the file alone knows how far it has read.
    reader = AIOKafkaConsumer(*TOPICS, bootstrap_servers=BROKERS, auto_offset_reset="earliest")
    async with reader:
        for topic, part, following in database.sql("from places").fetchall():
            reader.seek(TopicPartition(topic, part), following)
        while True:
            batches = await reader.getmany(timeout_ms=1000)
            database.begin()  # events and places together: a crash loses nothing
            for place, records in batches.items():
                database.executemany(INSERT, [[record.value] for record in records])
                database.execute(PLACE, [*place, records[-1].offset + 1])
            database.commit()
            if batches:
                database.sql("from tenants").show()


asyncio.run(main(sys.argv[1]))
