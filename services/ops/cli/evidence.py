"""The commands that ask about a turn's plan, and the one that ends a turn."""

# ruff: noqa: PLC0415 -- what a command needs is imported when it runs, so that --help is quick

from typing import Annotated
from uuid import UUID

import typer

from services.ops.cli.command import DEFAULT_DATA_DIR, Command, DataDir, GatewayUrl, screen_of
from services.ops.cli.reaching import asked, fetched
from services.ops.cli.talking import Step, TurnId, turns_app
from services.ops.failures import CommandFailed, ExitCode


def register(root: typer.Typer) -> None:
    """Add the commands to ``turnwire turns``."""
    del root
    examples = "turnwire turns diff TURN_ID\nturnwire turns diff TURN_ID --against EARLIER_TURN_ID"
    turns_app.command("diff", cls=Command, epilog=examples)(diff)
    examples = (
        'turnwire turns explain TURN_ID "the ferry"\n'
        "turnwire turns explain TURN_ID --message MESSAGE_ID"
    )
    turns_app.command("explain", cls=Command, epilog=examples)(explain)
    turns_app.command("replay", cls=Command, epilog="turnwire turns replay TURN_ID")(replay)
    turns_app.command("cancel", cls=Command, epilog="turnwire turns cancel TURN_ID")(cancel)


def diff(
    ctx: typer.Context,
    turn_id: TurnId,
    *,
    against: Annotated[
        UUID | None,
        typer.Option("--against", metavar="TURN_ID", help="Else the turn before it."),
    ] = None,
    step: Step = None,
    url: GatewayUrl = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Say how a turn's plan differs from an earlier one's. Exit code 5 if not in a healthy way."""
    screen = screen_of(ctx)
    from services.ops.showing import diff_lines

    query = {"against": against, "step": step}
    found = fetched(screen, f"/v1/turns/{turn_id}/plan/diff", data_dir, url, query=query)
    screen.result(found, diff_lines(screen, found))
    if not found["is_healthy"]:
        raise typer.Exit(ExitCode.INVARIANT)


def explain(  # noqa: PLR0913 -- every option of a command is an argument
    ctx: typer.Context,
    turn_id: TurnId,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="What is looked for.")] = None,
    *,
    message: Annotated[
        UUID | None, typer.Option("--message", metavar="ID", help="A message instead of a text.")
    ] = None,
    step: Step = None,
    url: GatewayUrl = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Say whether the model was shown a text or a message, and where; else why not."""
    screen = screen_of(ctx)
    if (text is None) == (message is None):
        msg = "Say what is looked for: a text, or a message with --message, not both."
        raise CommandFailed(msg, exit_code=ExitCode.USAGE)
    from services.ops.showing import explain_lines

    body: dict[str, object] = {"message_id": str(message)} if text is None else {"text": text}
    if step is not None:
        body["step"] = step
    found = asked(screen, "POST", f"/v1/turns/{turn_id}/explain", data_dir, url, body=body)
    screen.result(found, explain_lines(screen, found))


def replay(
    ctx: typer.Context,
    turn_id: TurnId,
    *,
    step: Step = None,
    url: GatewayUrl = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Make a payload again from the stored rows, and compare. Exit code 5 if it differs."""
    screen = screen_of(ctx)
    from services.ops.showing import replay_lines

    found = fetched(screen, f"/v1/turns/{turn_id}/replay", data_dir, url, query={"step": step})
    screen.result(found, replay_lines(screen, found))
    if not found["equal"]:
        raise typer.Exit(ExitCode.INVARIANT)


def cancel(
    ctx: typer.Context,
    turn_id: TurnId,
    *,
    url: GatewayUrl = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Ask for a turn's end. It comes within two seconds; what was shown stays."""
    screen = screen_of(ctx)
    from services.ops.showing import turn_lines

    turn = asked(screen, "POST", f"/v1/turns/{turn_id}/cancel", data_dir, url)
    screen.result(turn, turn_lines(screen, turn))
