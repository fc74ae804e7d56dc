"""The private names of aiokafka and FastStream that we need; a test fails when one goes away.

``stop()`` of a producer whose broker is away leaves its sender running, which writes old batches
later; ``stop()`` of such a consumer raises a cancellation that nobody asked for. Both are closed
here by hand.
"""

import asyncio
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

SENDER_TIMEOUT_S = 3.0
"""Longest wait for a cancelled sender task."""


async def close_producer_hard(producer: AIOKafkaProducer) -> None:
    """End a producer at once: nothing it still holds is sent later."""
    producer._closed = True
    task = producer._sender.sender_task
    if task is not None:
        task.cancel()
        await asyncio.wait([task], timeout=SENDER_TIMEOUT_S)
    with suppress(TimeoutError):
        async with asyncio.timeout(SENDER_TIMEOUT_S):
            await producer.client.close()


def coordination_is_over(consumer: AIOKafkaConsumer) -> bool:
    """Whether the consumer's group membership task has ended, which it never should."""
    coordinator: Any = consumer._coordinator
    task = getattr(coordinator, "_coordination_task", None)
    return task is not None and task.done()


def is_rejoining(consumer: AIOKafkaConsumer) -> bool:
    """Whether the consumer wants to join its group again and has not managed to yet."""
    coordinator: Any = consumer._coordinator
    future = getattr(coordinator, "_rejoin_needed_fut", None)
    return future is not None and future.done()
