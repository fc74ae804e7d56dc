"""The commands that talk to a gateway over HTTP: chat, and the turns of a conversation."""

# ruff: noqa: PLC0415 -- what a command needs is imported when it runs, so that --help is quick

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from services.ops.cli.command import DEFAULT_DATA_DIR, Command, DataDir, GatewayUrl, app, screen_of
from services.ops.failures import CommandFailed, ExitCode

if TYPE_CHECKING:
    from services.ops.gateway import Document

turns_app = app(
    "turns",
    "Turns: one message and its one answer.",
    ("turnwire turns show TURN_ID", "turnwire turns plan TURN_ID --json"),
)
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

    address, key = _target(data_dir, url)
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

    turn = _fetched(f"/v1/turns/{turn_id}", data_dir, url)
    screen.result(turn, turn_lines(screen, turn))


def plan(
    ctx: typer.Context,
    turn_id: TurnId,
    *,
    url: GatewayUrl = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Show what the model was given in a turn, and what was left out and why."""
    screen = screen_of(ctx)
    from services.ops.showing import plan_lines

    found = _fetched(f"/v1/turns/{turn_id}/plan", data_dir, url)
    screen.result(found, plan_lines(screen, found))


def openapi(
    ctx: typer.Context, *, url: GatewayUrl = None, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """Print the OpenAPI document of a running gateway."""
    screen_of(ctx).document(_fetched("/openapi.json", data_dir, url))


def _fetched(path: str, data_dir: DataDir, url: str | None) -> "Document":
    import asyncio

    from services.ops.gateway import Gateway

    address, key = _target(data_dir, url)

    async def fetched() -> "Document":
        async with Gateway.opened(address, key) as gateway:
            return await gateway.get(path)

    return asyncio.run(fetched())


def _target(data_dir: DataDir, url: str | None) -> tuple[str, str]:
    """Where the gateway is, and the key for it."""
    import os

    from services.ops.configuration import ops_settings
    from services.ops.data_folder import DataFolder

    folder = DataFolder(data_dir)
    settings = ops_settings(data_dir)
    is_named = "TURNWIRE_URL" in os.environ
    address = url or (settings.gateway_url if is_named else folder.url or settings.gateway_url)
    key = settings.api_key.get_secret_value() if settings.api_key else folder.api_key
    if not key:
        msg = (
            "There is no API key: TURNWIRE_API_KEY is not set and there is none in "
            f"{folder.path}. Set it, or make one with `turnwire keys create`."
        )
        raise CommandFailed(msg, exit_code=ExitCode.USAGE)
    return address.rstrip("/"), key
