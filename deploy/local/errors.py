"""What can go wrong while the local stack starts.

* LocalStackError
  + PartUnavailable    a part is not installed here
  + PartFailed         a part was started and did not become ready
  + PortBusy           somebody else listens on the port
  + StackAlreadyRunning   another process uses the data folder
"""


class LocalStackError(Exception):
    """Base of the local stack's errors; the text says what happened, why and what to do."""


class PartUnavailable(LocalStackError):
    """The wheel that carries a part is not installed, or does not fit this machine."""


class PartFailed(LocalStackError):
    """A part ended early or was not ready within its time limit."""


class PortBusy(LocalStackError):
    """A port that a part or service needs is taken by another process."""


class StackAlreadyRunning(LocalStackError):
    """Another process holds the data folder's lock."""
