"""Time and what is told about the work, handed together to every part that does some."""

from dataclasses import dataclass

from libs.clock import Clock
from libs.telemetry.metrics import Metrics
from libs.telemetry.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Instruments:
    """One of each per process."""

    clock: Clock
    metrics: Metrics
    tracing: Tracing
