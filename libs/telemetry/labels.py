"""Labels of metrics: closed sets of values, and metrics that take no others."""

from typing import Generic, Literal, TypeVar

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from schemas.prompt_plan import ExclusionReason
from schemas.requests import Policy
from schemas.turns import TerminalStatus

Replay = Literal["replayed", "conflict"]
RecoveryCause = Literal["lease_expired", "deadline", "queue_timeout", "kafka_lost", "dead_lettered"]
Resume = Literal["continued", "snapshot", "finished", "invalid"]
Direction = Literal["input", "output", "cached"]
LlmOutcome = Literal[
    "completed",
    "tool_calls",
    "max_tokens",
    "content_filter",
    "interrupted",
    "cancelled",
    "refused",
    "throttled",
    "unavailable",
    "timeout",
]
Admission = Literal["streams", "queue_full", "dependency", "shutting_down"]
FenceWhere = Literal["work", "result", "partial", "stream", "lease"]
LiveStreamUse = Literal["append", "read", "ring", "watch"]

MAX_MODELS = 50
"""Models with series of their own in one process; a client may name any, and series stay for ever.
Further ones share ``OTHER_MODELS``."""

OTHER_MODELS = "other"

M = TypeVar("M", bound=MetricWrapperBase)


class Labelled(Generic[M]):
    """A metric with labels; a subclass names them and their types, in the metric's order."""

    def __init__(self, metric: M) -> None:
        self._metric = metric

    @property
    def inner(self) -> M:
        """The metric itself."""
        return self._metric

    def _child(self, *values: str) -> M:
        return self._metric.labels(*values)


class _Modelled(Labelled[M]):
    """A metric with a model among its labels."""

    def __init__(self, metric: M) -> None:
        super().__init__(metric)
        self._models: set[str] = set()

    def _named(self, model: str) -> str:
        if model not in self._models:
            if len(self._models) >= MAX_MODELS:
                return OTHER_MODELS
            self._models.add(model)
        return model


class ByPolicy(Labelled[Counter]):
    """By the policy of a turn."""

    def labels(self, policy: Policy) -> Counter:
        """The counter of one policy."""
        return self._child(policy)


class ByEnd(Labelled[Counter]):
    """By terminal state and reason."""

    def labels(self, status: TerminalStatus, reason: str | None) -> Counter:
        """The counter of one end; completed turns have no reason."""
        return self._child(status, reason or "none")


class ByCause(Labelled[Counter]):
    """By what made a recovery necessary."""

    def labels(self, cause: RecoveryCause) -> Counter:
        """The counter of one cause."""
        return self._child(cause)


class ByReplay(Labelled[Counter]):
    """By what came of a repeated key."""

    def labels(self, result: Replay) -> Counter:
        """The counter of one result."""
        return self._child(result)


class ByInvariant(Labelled[Counter]):
    """By the name of a promise."""

    def labels(self, invariant: str) -> Counter:
        """The counter of one invariant."""
        return self._child(invariant)


class ByResume(Labelled[Counter]):
    """By how a stream was taken up again."""

    def labels(self, result: Resume) -> Counter:
        """The counter of one result."""
        return self._child(result)


class ByConsumer(Labelled[Counter]):
    """By consumer group."""

    def labels(self, consumer: str) -> Counter:
        """The counter of one consumer."""
        return self._child(consumer)


class ByTopic(Labelled[Gauge]):
    """By topic."""

    def labels(self, topic: str) -> Gauge:
        """The gauge of one topic."""
        return self._child(topic)


class ByTopicAndReason(Labelled[Counter]):
    """By topic and error code."""

    def labels(self, topic: str, reason: str) -> Counter:
        """The counter of one topic and one stable error code."""
        return self._child(topic, reason)


class BySection(Labelled[Histogram]):
    """By section of a prompt plan."""

    def labels(self, section: str) -> Histogram:
        """The histogram of one section."""
        return self._child(section)


class ByExclusion(Labelled[Counter]):
    """By why a block was left out of a plan."""

    def labels(self, reason: ExclusionReason) -> Counter:
        """The counter of one reason."""
        return self._child(reason)


class ByModel(_Modelled[Histogram]):
    """By model."""

    def labels(self, model: str) -> Histogram:
        """The histogram of one model."""
        return self._child(self._named(model))


class ByCall(_Modelled[Counter]):
    """By provider, model and outcome."""

    def labels(self, provider: str, model: str, outcome: LlmOutcome) -> Counter:
        """The counter of one kind of call."""
        return self._child(provider, self._named(model), outcome)


class ByDirection(Labelled[Counter]):
    """By direction of tokens."""

    def labels(self, direction: Direction) -> Counter:
        """The counter of one direction."""
        return self._child(direction)


class ByAdmission(Labelled[Counter]):
    """By why a request was turned away."""

    def labels(self, reason: Admission) -> Counter:
        """The counter of one reason."""
        return self._child(reason)


class ByRequest(Labelled[Histogram]):
    """By method, route and status."""

    def labels(self, method: str, route: str, status: int) -> Histogram:
        """The histogram of one route's template (never the path, which holds ids) and status."""
        return self._child(method, route, str(status))


class ByFence(Labelled[Counter]):
    """By where a late writer was refused."""

    def labels(self, where: FenceWhere) -> Counter:
        """The counter of one place."""
        return self._child(where)


class ByUse(Labelled[Counter]):
    """By what Redis was wanted for."""

    def labels(self, use: LiveStreamUse) -> Counter:
        """The counter of one use."""
        return self._child(use)


class ByBuild(Labelled[Gauge]):
    """By what is running."""

    def labels(self, service: str, version: str, python: str) -> Gauge:
        """The gauge of one build; always 1."""
        return self._child(service, version, python)
