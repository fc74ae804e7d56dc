"""The commands that talk to a gateway over HTTP: chat, and the turns of a conversation."""

# ruff: noqa: PLC0415 -- what a command needs is imported when it runs, so that --help is quick

from typing import Annotated
from uuid import UUID

import typer

from services.ops.cli.command import DEFAULT_DATA_DIR, Command, DataDir, GatewayUrl, app, screen_of
from services.ops.cli.reaching import fetched, target

turns_app = app(
    "turns",
    "Turns: one message and its one answer.",
    (
        "turnwire turns show TURN_ID",
        "turnwire turns plan TURN_ID --json",
        'turnwire turns explain TURN_ID "the ferry"',
    ),
)
Step = Annotated[
    int | None, typer.Option("--step", metavar="N", min=1, help="Which step; else the last.")
]
TurnId = Annotated[UUID, typer.Argument(metavar="TURN_ID", help="As the answer names it.")]


def register(root: typer.Typer) -> None:
    """Add the commands."""
    examples = (
        "turnwire chat",
        "turnwire chat --resume CONVERSATION_ID",
        "echo Hello | turnwire chat",
    )
    root.command(cls=Command, epilog="\n".join(examples))(chat)
    root.command(cls=Command, epilog="turnwire openapi > openapi.json")(openapi)
    turns_app.command("show", cls=Command, epilog="turnwire turns show TURN_ID")(show)
    turns_app.command("plan", cls=Command, epilog="turnwire turns plan TURN_ID --json")(plan)
    root.add_typer(turns_app)


def chat(
    ctx: typer.Context,
    *,
    resume: Annotated[
        UUID | None, typer.Option("--resume", metavar="ID", help="Conversation to go on with.")
    ] = None,
    url: GatewayUrl = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Talk to the model in the terminal.

    The answer streams, and a lost connection is picked up where it was. The key comes from
    TURNWIRE_API_KEY, else from the data folder. Ctrl-C leaves; the running answer goes on and is
    there with --resume.
    """
    screen = screen_of(ctx)
    screen.say("Connecting; end with Ctrl-D.")
    from services.ops.chat import ChatTarget
    from services.ops.chat import chat as run_chat

    address, key = target(data_dir, url)
    run_chat(screen, ChatTarget(address, key, None if resume is None else str(resume)))


def show(
    ctx: typer.Context,
    turn_id: TurnId,
    *,
    url: GatewayUrl = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Show a turn's record: state, reason, model, tokens, times."""
    screen = screen_of(ctx)
    from services.ops.showing import turn_lines

    turn = fetched(screen, f"/v1/turns/{turn_id}", data_dir, url)
    screen.result(turn, turn_lines(screen, turn))


def plan(
    ctx: typer.Context,
    turn_id: TurnId,
    *,
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", min=1, help="Which step; else all.")
    ] = None,
    url: GatewayUrl = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Show what the model was given in a turn, and what was left out and why."""
    screen = screen_of(ctx)
    from services.ops.showing import plan_lines

    found = fetched(screen, f"/v1/turns/{turn_id}/plan", data_dir, url, query={"step": step})
    screen.result(found, plan_lines(screen, found))


def openapi(
    ctx: typer.Context, *, url: GatewayUrl = None, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """Print the OpenAPI document of a running gateway."""
    screen = screen_of(ctx)
    screen.document(fetched(screen, "/openapi.json", data_dir, url))
