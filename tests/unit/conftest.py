"""What unit tests of several folders share."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from libs.telemetry.recording import SdkRecorder


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Where the spans of a test go."""
    return InMemorySpanExporter()


@pytest.fixture
def recorder(exporter: InMemorySpanExporter) -> Iterator[SdkRecorder]:
    """Records as a service does that was given an endpoint."""
    recorder = SdkRecorder("test", exporter)
    yield recorder
    recorder.close()
