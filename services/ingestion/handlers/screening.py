"""Checks that every record must pass before it is read as an event of its topic."""

from libs.kafka import Delivery
from schemas.registry import EVENTS_OF_TOPIC

WRONG_KEY = "key_mismatch"
WRONG_TOPIC = "wrong_topic"


def misplaced(delivery: Delivery) -> str | None:
    """Why a record does not belong where it stands, or None.

    The key must be the conversation: it decides partition and order. A type that another topic
    carries would let one service speak for another.
    """
    if delivery.key != str(delivery.event.conversation_id).encode():
        return WRONG_KEY
    if not isinstance(delivery.event.data, EVENTS_OF_TOPIC.get(delivery.topic, ())):
        return WRONG_TOPIC
    return None
