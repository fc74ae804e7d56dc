"""The private names that ``libs.kafka`` relies on; an upgrade that moves one turns this red."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from faststream import AckPolicy
from faststream.kafka import KafkaBroker

from libs.kafka.internals import close_producer_hard, coordination_is_over, is_rejoining
from tests.contract.test_publisher import make_topic

pytestmark = pytest.mark.kafka


async def test_a_producer_is_closed_hard_and_its_sender_is_gone(
    kafka_url: str, topic_prefix: str
) -> None:
    await make_topic(kafka_url, topic_prefix + "t")
    producer = AIOKafkaProducer(bootstrap_servers=kafka_url, enable_idempotence=True)
    await producer.start()
    await producer.send_and_wait(topic_prefix + "t", b"v")
    sender = producer._sender.sender_task
    assert not sender.done()

    await close_producer_hard(producer)

    assert sender.done()
    assert producer._closed is True


async def test_a_consumers_membership_can_be_asked_about(kafka_url: str, topic_prefix: str) -> None:
    topic = topic_prefix + "t"
    await make_topic(kafka_url, topic)
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka_url, group_id=topic + ".g")
    await consumer.start()
    try:
        async with asyncio.timeout(20):
            while is_rejoining(consumer):
                await consumer.getmany(timeout_ms=50)
        assert not coordination_is_over(consumer)
        task = consumer._coordinator._coordination_task
    finally:
        await consumer.stop()
    assert task.done()


def test_fast_stream_polls_and_consumes_through_the_names_we_replace() -> None:
    subscriber: Any = KafkaBroker().subscriber("t", batch=True, ack_policy=AckPolicy.MANUAL)
    loop_code = type(subscriber)._run_consume_loop.__code__

    assert {"get_msg", "consume_one", "running"} <= set(loop_code.co_names)
    subscriber.get_msg = None
    subscriber.consume_one = None
    assert hasattr(subscriber, "lock")
