"""The command line ``turnwire``; only what every command needs is imported here."""

import contextlib
import os
import sys
from collections.abc import Sequence

import typer

from services.ops.cli import (
    deployment,
    evidence,
    keys,
    operating,
    rebuilding,
    stack,
    talking,
    watching,
)
from services.ops.cli.command import app, split_everywhere
from services.ops.failures import OURS, exit_code_of

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
NOBODY_READS = 141  # 128 + SIGPIPE, as shells have it


def build() -> typer.Typer:
    """All commands, in the order in which a newcomer meets them."""
    root = app(
        "turnwire",
        "The backend behind stateful AI chats: one message is one turn, with one committed answer.",
        ("turnwire demo", "turnwire chat", "turnwire status", "turnwire doctor"),
    )
    for group in (stack, talking, evidence, watching, rebuilding, keys, operating, deployment):
        group.register(root)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (``services.ops.failures.ExitCode``)."""
    screen, rest = split_everywhere(sys.argv[1:] if arguments is None else arguments)
    try:
        build()(args=rest, prog_name="turnwire", obj=screen)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer calls it a failure
            leave_stdout()
            return NOBODY_READS
        return ended.code if isinstance(ended.code, int) else 0
    except BrokenPipeError:
        leave_stdout()
        return NOBODY_READS
    except KeyboardInterrupt:
        return INTERRUPTED
    except OURS as error:
        with contextlib.suppress(BrokenPipeError):  # the exit code still says it
            screen.fail(str(error))
        return int(exit_code_of(error))
    return 0


def leave_stdout() -> None:
    """Whoever read the output has gone (``| head``): the last flush must not find nobody."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
