"""Every metric as its page tells it."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from libs.telemetry.labels import Labelled
from libs.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Description:
    """A metric; ``name`` stands without the prefix."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def described_metrics() -> list[Description]:
    """Every metric that a process exposes, in the order in which they are declared."""
    found: list[Description] = []
    for name, metric in vars(Metrics(CollectorRegistry())).items():
        inner: MetricWrapperBase = metric.inner if isinstance(metric, Labelled) else metric
        labels = tuple(inner._labelnames)  # noqa: SLF001 -- the library tells them nowhere else
        (family,) = inner.describe()
        found.append(Description(name, family.type, labels, family.documentation))
    return found
