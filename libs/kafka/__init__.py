"""The one home of aiokafka and FastStream: batch loop, publisher, topics, health."""

from libs.kafka.publisher import KafkaPublisher, MemoryPublisher, Publisher, Record
from libs.kafka.records import Delivery, RawRecord

# libs.kafka.loop is imported by its own name: it needs libs.outbox, whose relay needs this package.
__all__ = ["Delivery", "KafkaPublisher", "MemoryPublisher", "Publisher", "RawRecord", "Record"]
