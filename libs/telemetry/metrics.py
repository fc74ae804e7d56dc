"""Every metric of Turnwire: name, unit, meaning, and what to do when it rises.

Names are ``turnwire_`` and the attribute's name. Labels are closed sets, names from the
configuration, or models up to a number; a tenant or a conversation is never a label, since each
would be a series of its own for ever. Where a set of values is closed its type says so, and a
misspelt one does not type-check.
"""

import platform
from collections.abc import Sequence
from itertools import product
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from libs.telemetry.labels import (
    Admission,
    ByAdmission,
    ByBuild,
    ByCall,
    ByCause,
    ByConsumer,
    ByDirection,
    ByEnd,
    ByExclusion,
    ByFence,
    ByInvariant,
    ByModel,
    ByPolicy,
    ByReplay,
    ByRequest,
    ByResume,
    BySection,
    ByTopic,
    ByTopicAndReason,
    ByUse,
    Direction,
    FenceWhere,
    LiveStreamUse,
    RecoveryCause,
    Replay,
    Resume,
)
from schemas.prompt_plan import ExclusionReason
from schemas.requests import Policy

NAMESPACE = "turnwire"

TURN_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 180, 300, 315)
"""From an answer of a few words to the deadline of a turn, and the reaper 15 s after it."""

FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Our own share is some milliseconds, the provider's up to the idle limit of 60 s."""

REQUEST_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""From a read of one row to the longest wait for an acceptance."""

LAG_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
"""From an idle event loop to the lag at which a process is no longer alive."""

BATCH_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
"""A batch is one short transaction, about 1.2 ms; above a second the database is in trouble."""

BATCH_RECORDS = (1, 2, 4, 8, 16, 32, 64)
"""Doubling up to the most records that one poll takes."""

PLAN_TOKENS = (0, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)
"""Steps of four, from an empty section to the largest window in use."""

TOKEN_RATIO = (0.5, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.5, 2)
"""Finest around 1; above the model's safety factor a plan can overflow its window."""


class _Maker:
    """Makes metrics in one registry, under one prefix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(
        self, name: str, meaning: str, *labels: str, closed: Sequence[Sequence[str]] = ()
    ) -> Counter:
        """A counter; of closed sets every series starts at 0, so that a first rise is seen."""
        counter = Counter(name, meaning, labels, namespace=NAMESPACE, registry=self._registry)
        for values in product(*closed) if closed else ():
            counter.labels(*values)
        return counter

    def gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, namespace=NAMESPACE, registry=self._registry)

    def histogram(
        self, name: str, meaning: str, *labels: str, buckets: Sequence[float]
    ) -> Histogram:
        return Histogram(
            name, meaning, labels, namespace=NAMESPACE, registry=self._registry, buckets=buckets
        )


class _TurnMetrics:
    """The life of turns; counted by whoever decides it, after the commit that decided."""

    def __init__(self, make: _Maker) -> None:
        self.turns_accepted_total: Final = ByPolicy(
            make.counter(
                "turns_accepted_total",
                "Turns whose acceptance was committed, by policy. A rise is load: watch "
                "turns_in_progress and the first token beside it.",
                "policy",
                closed=(get_args(Policy),),
            )
        )
        self.turns_terminal_total: Final = ByEnd(
            make.counter(
                "turns_terminal_total",
                "Turns that ended, by state and reason. When failed or partial rises, the reason "
                "names the service to look at.",
                "status",
                "reason",
            )
        )
        self.turns_in_progress: Final = make.gauge(
            "turns_in_progress",
            "Accepted turns without an end. When it rises while accepted turns do not, look at the "
            "provider's latency, then at consumer_lag_records.",
        )
        self.turns_overdue: Final = make.gauge(
            "turns_overdue",
            "Open turns whose deadline has passed; they are ended 15 s after it. When it stays "
            "above 0, the sweep of ingestion does not work: look at its log and its database.",
        )
        self.turn_duration_seconds: Final = make.histogram(
            "turn_duration_seconds",
            "Seconds from acceptance to the end of a turn. When it rises, compare with the first "
            "token: what lies between them is the provider's.",
            buckets=TURN_SECONDS,
        )
        self.turn_time_to_first_token_seconds: Final = make.histogram(
            "turn_time_to_first_token_seconds",
            "Seconds from acceptance to the first delta of the answer that was kept. When it "
            "rises, look at kafka_batch_seconds and event_loop_lag_seconds, then at the provider.",
            buckets=FIRST_TOKEN_SECONDS,
        )


class _PromiseMetrics:
    """Where a promise was tested by a repeat, a crash or a bug."""

    def __init__(self, make: _Maker) -> None:
        self.turn_recoveries_total: Final = ByCause(
            make.counter(
                "turn_recoveries_total",
                "Turns or attempts that a sweeper had to take up or end, by cause. A rise means "
                "that workers die or stall: look at restarts and their reasons.",
                "cause",
                closed=(get_args(RecoveryCause),),
            )
        )
        self.idempotent_replays_total: Final = ByReplay(
            make.counter(
                "idempotent_replays_total",
                "Requests whose key was known, by result. A rise of replayed means clients retry: "
                "look for time-outs at the gateway; of conflict, that a client reuses keys.",
                "result",
                closed=(get_args(Replay),),
            )
        )
        self.invariant_violations_total: Final = ByInvariant(
            make.counter(
                "invariant_violations_total",
                "Promises found broken at run time, by name. Must stay 0: the log line of the turn "
                "holds ids and counts; treat it as a bug at once.",
                "invariant",
            )
        )
        self.fence_refusals_total: Final = ByFence(
            make.counter(
                "fence_refusals_total",
                "Writes of an attempt that had been replaced, refused, by place. Harmless each; a "
                "rise means that workers stall longer than their lease: look at CPU and pauses.",
                "where",
                closed=(get_args(FenceWhere),),
            )
        )


class _GatewayMetrics:
    """What clients meet."""

    def __init__(self, make: _Maker) -> None:
        self.http_request_duration_seconds: Final = ByRequest(
            make.histogram(
                "http_request_duration_seconds",
                "Seconds to answer a request (of a stream, to its first byte), by method, route "
                "template and status. When a POST is slow, look at ingestion's batches.",
                "method",
                "route",
                "status",
                buckets=REQUEST_SECONDS,
            )
        )
        self.admission_rejected_total: Final = ByAdmission(
            make.counter(
                "admission_rejected_total",
                "Requests turned away, by reason. streams and queue_full: a client is too fast, or "
                "a limit too low; dependency: Kafka or ingestion is away.",
                "reason",
                closed=(get_args(Admission),),
            )
        )
        self.sse_streams_active: Final = make.gauge(
            "sse_streams_active",
            "Open event streams of this process. Above about 1,000 add a gateway process.",
        )
        self.sse_resumes_total: Final = ByResume(
            make.counter(
                "sse_resumes_total",
                "Streams taken up again with an id, by result. A rise means that connections break "
                "(a proxy's time-out?); many snapshots mean that Redis loses streams.",
                "result",
                closed=(get_args(Resume),),
            )
        )
        self.sse_slow_clients_closed_total: Final = make.counter(
            "sse_slow_clients_closed_total",
            "Streams cut because the client did not read; it resumes by id. When it rises, look at "
            "clients' networks and at the proxy's buffering.",
        )
        self.sse_buffer_bytes: Final = make.gauge(
            "sse_buffer_bytes",
            "Bytes waiting for slow clients in this process. Bounded per client; when it rises "
            "steadily, slow clients are not being cut.",
        )
        self.live_stream_errors_total: Final = ByUse(
            make.counter(
                "live_stream_errors_total",
                "Uses of Redis that failed, by use. Turns go on without it; when it rises look at "
                "Redis: memory, connections, network.",
                "use",
                closed=(get_args(LiveStreamUse),),
            )
        )


class _QueueMetrics:
    """Outbox, inbox and topics."""

    def __init__(self, make: _Maker) -> None:
        self.outbox_pending: Final = make.gauge(
            "outbox_pending",
            "Committed events that Kafka has not acknowledged. When it rises, Kafka is away or the "
            "relay holds no bucket: look at the relay's log.",
        )
        self.outbox_oldest_seconds: Final = make.gauge(
            "outbox_oldest_seconds",
            "Age of the oldest event in the outbox, seconds. Above 10 something is stuck, whatever "
            "outbox_pending says.",
        )
        self.outbox_published_total: Final = make.counter(
            "outbox_published_total",
            "Events acknowledged by Kafka. Must keep pace with what is accepted.",
        )
        self.inbox_duplicates_total: Final = ByConsumer(
            make.counter(
                "inbox_duplicates_total",
                "Events delivered again and dropped, by consumer. Bursts follow rebalances and "
                "restarts; a steady rise means that offsets are not committed.",
                "consumer",
            )
        )
        self.consumer_lag_records: Final = ByTopic(
            make.gauge(
                "consumer_lag_records",
                "Records behind the end of a topic's partitions held by this process. When it "
                "rises, the handler is slower than the load: see kafka_batch_seconds.",
                "topic",
            )
        )
        self.dead_letters_total: Final = ByTopicAndReason(
            make.counter(
                "dead_letters_total",
                "Records parked because they can never be handled, by topic and error code. Look "
                "at each; a burst of one code means a producer is broken or hostile.",
                "topic",
                "reason",
            )
        )
        self.kafka_batch_records: Final = make.histogram(
            "kafka_batch_records",
            "Records in one handled batch. Always at the largest: the handler is the bottleneck.",
            buckets=BATCH_RECORDS,
        )
        self.kafka_batch_seconds: Final = make.histogram(
            "kafka_batch_seconds",
            "Seconds from a polled batch to its commit. When it rises, look at Postgres: locks, "
            "disk latency, missing index.",
            buckets=BATCH_SECONDS,
        )


class _ModelMetrics:
    """Plans, and the calls that are made of them."""

    def __init__(self, make: _Maker) -> None:
        self.plan_tokens: Final = BySection(
            make.histogram(
                "plan_tokens",
                "Tokens of one section of a plan as we count them. When a section grows, so does "
                "the price of every turn: look at its budget.",
                "section",
                buckets=PLAN_TOKENS,
            )
        )
        self.plan_excluded_total: Final = ByExclusion(
            make.counter(
                "plan_excluded_total",
                "Blocks left out of plans, by reason. When budget rises, conversations outgrow the "
                "window; the others point at their source.",
                "reason",
                closed=(get_args(ExclusionReason),),
            )
        )
        self.plan_token_estimate_ratio: Final = ByModel(
            make.histogram(
                "plan_token_estimate_ratio",
                "Input tokens as the provider counted them, divided by the plan's. Above the "
                "model's safety factor raise that factor in the catalogue.",
                "model",
                buckets=TOKEN_RATIO,
            )
        )
        self.llm_requests_total: Final = ByCall(
            make.counter(
                "llm_requests_total",
                "Requests sent to a provider, retries included, by outcome. When throttled or "
                "unavailable rises, look at the provider's limits and status.",
                "provider",
                "model",
                "outcome",
            )
        )
        self.llm_tokens_total: Final = ByDirection(
            make.counter(
                "llm_tokens_total",
                "Tokens used, by direction; cached is a part of input. A rise is cost: compare "
                "with plan_tokens.",
                "direction",
                closed=(get_args(Direction),),
            )
        )
        self.llm_cost_usd_total: Final = make.counter(
            "llm_cost_usd_total",
            "US dollars spent on models whose price is in the catalogue. When it rises faster than "
            "accepted turns, look at the length of plans and answers.",
        )


class _ProcessMetrics:
    """The process itself."""

    def __init__(self, make: _Maker) -> None:
        self.event_loop_lag_seconds: Final = make.histogram(
            "event_loop_lag_seconds",
            "Seconds by which the event loop was late. When it rises, something blocks the loop or "
            "the CPU is full: add a process, or profile this one.",
            buckets=LAG_SECONDS,
        )
        self.build_info: Final = ByBuild(
            make.gauge(
                "build_info",
                "Always 1; the labels say what runs. Two versions for long: a deployment is stuck.",
                "service",
                "version",
                "python",
            )
        )


class Metrics(
    _TurnMetrics,
    _PromiseMetrics,
    _GatewayMetrics,
    _QueueMetrics,
    _ModelMetrics,
    _ProcessMetrics,
):
    """All metrics, in the registry of one process; made once, where the service is built.

    Raises:
        ValueError: The registry has metrics of these names already.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Maker(registry)
        _TurnMetrics.__init__(self, make)
        _PromiseMetrics.__init__(self, make)
        _GatewayMetrics.__init__(self, make)
        _QueueMetrics.__init__(self, make)
        _ModelMetrics.__init__(self, make)
        _ProcessMetrics.__init__(self, make)

    def announce(self, service: str, version: str) -> None:
        """Say what is running, once, at the start."""
        self.build_info.labels(service, version, platform.python_version()).set(1)
