"""The command line ``turnwire``; only what every command needs is imported here."""

import sys
from collections.abc import Sequence

import typer

from services.ops.cli import deployment, evidence, keys, operating, stack, talking
from services.ops.cli.command import app, split_everywhere
from services.ops.failures import OURS, exit_code_of

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def build() -> typer.Typer:
    """All commands, in the order in which a newcomer meets them."""
    root = app(
        "turnwire",
        "The backend behind stateful AI chats: one message is one turn, with one committed answer.",
        ("turnwire demo", "turnwire chat", "turnwire status", "turnwire doctor"),
    )
    for group in (stack, talking, evidence, keys, operating, deployment):
        group.register(root)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (``services.ops.failures.ExitCode``)."""
    screen, rest = split_everywhere(sys.argv[1:] if arguments is None else arguments)
    try:
        build()(args=rest, prog_name="turnwire", obj=screen)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except OURS as error:
        screen.fail(str(error))
        return int(exit_code_of(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
