"""What a command ends with: an exit code, and a text that says what happened, why, what to do."""

from enum import IntEnum

# Both hold classes only, so that importing them costs no time.
from deploy.local.errors import LocalStackError, PartUnavailable, PortBusy, StackAlreadyRunning
from libs.errors import ChatError, MisconfiguredSettings, Retryable


class ExitCode(IntEnum):
    """The exit codes of the command line."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_READY = 3
    CONFLICT = 4
    INVARIANT = 5


class CommandFailed(Exception):
    """A command could not do what was asked; the text is shown as it is."""

    def __init__(self, text: str, *, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code


OURS = (CommandFailed, ChatError, LocalStackError)
"""Errors whose text is meant for people."""


def exit_code_of(error: Exception) -> ExitCode:
    """The exit code of one of ``OURS``."""
    if isinstance(error, CommandFailed):
        return error.exit_code
    if isinstance(error, PortBusy | StackAlreadyRunning):
        return ExitCode.CONFLICT
    if isinstance(error, Retryable | MisconfiguredSettings | PartUnavailable):
        return ExitCode.NOT_READY
    return ExitCode.FAILED
