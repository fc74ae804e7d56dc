"""Every error this backend raises on purpose.

* ChatError
  x Retryable              the same input may succeed later
    + StoreUnavailable       Postgres did not answer, or the connection was lost
    + LiveStreamUnavailable  Redis did not answer
    + QueueUnavailable       Kafka did not acknowledge in time
    + ProviderThrottled      the model provider answered 429
    + ProviderUnavailable    the model provider refused, timed out or answered 5xx
  x Terminal               the same input can never succeed
    + RecordTooLarge         an encoded record is above the limit of its topic
    + ProviderRefused        the model provider will never accept this request
    + MisconfiguredSettings  a setting is missing or contradicts another
"""


class ChatError(Exception):
    """Base of all deliberate errors; never raised itself.

    Attributes:
        code: Stable name, stored in dead letters and used as a metric label.
    """

    code = "chat.error"


class Retryable(ChatError):
    """The same input may succeed later.

    Attributes:
        retry_after_s: Seconds the other side asked us to wait; None if it did not say.
    """

    code = "retryable"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StoreUnavailable(Retryable):
    """Postgres did not answer, or the connection was lost; the commit's outcome may be unknown."""

    code = "store.unavailable"


class LiveStreamUnavailable(Retryable):
    """Redis did not answer; entries may be written again, their ids are explicit."""

    code = "live_stream.unavailable"


class QueueUnavailable(Retryable):
    """Kafka did not acknowledge in time; the record may be sent again, its event id is the same."""

    code = "queue.unavailable"


class ProviderThrottled(Retryable):
    """A model provider answered 429."""

    code = "provider.throttled"


class ProviderUnavailable(Retryable):
    """A model provider refused the connection, timed out or answered 5xx."""

    code = "provider.unavailable"


class Terminal(ChatError):
    """The same input can never succeed."""

    code = "terminal"


class RecordTooLarge(Terminal):
    """An encoded record is above the limit of its topic."""

    code = "record.too_large"

    def __init__(self, *, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"the encoded record has {size_bytes} bytes, the limit is {limit_bytes}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class ProviderRefused(Terminal):
    """A model provider will never accept this request."""

    code = "provider.refused"


class MisconfiguredSettings(Terminal):
    """A setting is missing or contradicts another."""

    code = "settings.misconfigured"
