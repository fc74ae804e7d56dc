"""Why a record cannot be read as an event; each name is the reason in its dead letter."""


class UnreadableRecord(Exception):
    """A record that no handler will ever see.

    Attributes:
        reason: Stable name for dead letters and the metric's label; holds no bytes of the record.
    """

    reason = "unreadable"


class MalformedEvent(UnreadableRecord):
    """The bytes are not an event: not JSON, not the envelope, or the data does not validate."""

    reason = "malformed"


class UnknownEvent(UnreadableRecord):
    """The envelope is fine, but nobody here knows an event of that type."""

    reason = "unknown_type"


class UnsupportedVersion(UnreadableRecord):
    """The type is known, the version is newer than this process: its producer came too early."""

    reason = "unsupported_version"
