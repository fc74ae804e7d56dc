"""The outbox: events written beside their effects, and the relay that brings them to Kafka."""

from libs.outbox.messages import (
    OutboxMessage,
    append_statement,
    closing_statements,
    delete_statement,
    outbox_message,
)
from libs.outbox.relay import Relay

__all__ = [
    "OutboxMessage",
    "Relay",
    "append_statement",
    "closing_statements",
    "delete_statement",
    "outbox_message",
]
