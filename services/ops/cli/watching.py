"""The commands that look at a deployment as its operator, and the three acts on it."""

# ruff: noqa: PLC0415 -- what a command needs is imported when it runs, so that --help is quick

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import UUID

import typer

from services.ops.cli.command import (
    DEFAULT_DATA_DIR,
    Command,
    DataDir,
    app,
    check_one_of,
    screen_of,
)
from services.ops.cli.talking import TurnId, turns_app
from services.ops.failures import CommandFailed, ExitCode

if TYPE_CHECKING:
    from services.ops.operations import Operations

T = TypeVar("T")
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
LetterId = Annotated[UUID, typer.Argument(metavar="ID", help="As `turnwire dlq ls` names it.")]

dlq_app = app(
    "dlq",
    "Dead letters: records that a service could not handle, never their bytes.",
    ("turnwire dlq ls", "turnwire dlq show ID", "turnwire dlq redrive ID --dry-run"),
)
outbox_app = app(
    "outbox", "Events that wait for the broker.", ("turnwire outbox status", "turnwire outbox ls")
)


def register(root: typer.Typer) -> None:
    """Add the commands."""
    add = turns_app.command
    examples = "turnwire turns events TURN_ID\nturnwire turns events TURN_ID --json"
    add("events", cls=Command, epilog=examples)(turns_events)
    examples = "turnwire turns find CONVERSATION_ID\nturnwire turns find IDEMPOTENCY_KEY"
    add("find", cls=Command, epilog=examples)(turns_find)
    examples = "turnwire turns ls --status open\nturnwire turns ls --status failed"
    add("ls", cls=Command, epilog=examples)(turns_ls)
    examples = "turnwire turns end TURN_ID --dry-run\nturnwire turns end TURN_ID --reason user"
    add("end", cls=Command, epilog=examples)(turns_end)
    add("reap", cls=Command, epilog="turnwire turns reap TURN_ID --dry-run")(turns_reap)
    dlq_app.command("ls", cls=Command, epilog="turnwire dlq ls --json")(dlq_ls)
    dlq_app.command("show", cls=Command, epilog="turnwire dlq show ID")(dlq_show)
    examples = "turnwire dlq redrive ID --dry-run\nturnwire dlq redrive ID --yes"
    dlq_app.command("redrive", cls=Command, epilog=examples)(dlq_redrive)
    outbox_app.command("status", cls=Command, epilog="turnwire outbox status --json")(outbox_status)
    outbox_app.command("ls", cls=Command, epilog="turnwire outbox ls")(outbox_ls)
    root.add_typer(dlq_app)
    root.add_typer(outbox_app)


def operated(ctx: typer.Context, data_dir: Path, ask: "Callable[[Operations], Awaitable[T]]") -> T:
    """What the deployment answers to an operator.

    Raises:
        CommandFailed: It cannot be reached, or the act was refused.
    """
    from services.ops.bars import bar

    with bar(screen_of(ctx), "Asking Postgres"):
        return reached(data_dir, ask)


def reached(data_dir: Path, ask: "Callable[[Operations], Awaitable[T]]") -> T:
    """The same for whoever shows how far it is."""
    import asyncio

    from libs.operating import Refusal
    from services.ops.logs import log_errors_to_stderr
    from services.ops.operations import opened_operations

    log_errors_to_stderr()

    async def asked() -> T:
        async with opened_operations(data_dir) as operations:
            return await ask(operations)

    try:
        return asyncio.run(asked())
    except Refusal as refusal:
        msg = f"It was refused: {refusal}."
        raise CommandFailed(msg, exit_code=ExitCode.CONFLICT) from None


def turns_events(
    ctx: typer.Context, turn_id: TurnId, *, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """Tell the whole story of a turn over all services, in the order of time, and why it ended."""
    screen = screen_of(ctx)
    from services.ops.looking import story_lines

    told = operated(ctx, data_dir, lambda operations: operations.reads.story(turn_id))
    if told is None:
        msg = f"There is no turn {turn_id}. Find one by another name: `turnwire turns find NAME`."
        raise CommandFailed(msg)
    screen.result(told, story_lines(screen, told))


def turns_find(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="An id of anything, or an idempotency key.")
    ],
    *,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Find turns by the id of turn, conversation or request, or by idempotency key."""
    screen = screen_of(ctx)
    from services.ops.looking import found_lines

    told = operated(ctx, data_dir, lambda operations: operations.reads.search(name))
    screen.result(told, found_lines(screen, told, name))
    if not any((told["turns"], told["request"], told["dead_letter"])):
        raise typer.Exit(ExitCode.FAILED)


def turns_ls(
    ctx: typer.Context,
    *,
    status: Annotated[
        str | None, typer.Option("--status", metavar="S", help="Such as open, queued or failed.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="R", help="Why it ended.")
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List open turns, the oldest first, or ended ones of the last day."""
    screen = screen_of(ctx)
    from libs.operating.reasons import MEANINGS, STATES
    from services.ops.looking import listed, turn_table

    if status is not None:
        check_one_of("state", status, STATES)
    if reason is not None:
        check_one_of("reason", reason, tuple(MEANINGS))
    turns = operated(ctx, data_dir, lambda operations: operations.reads.turns(status, reason))
    head = f"{listed(turns, 'turns')}." if turns else "There are no such turns."
    screen.result(turns, [head, "", *turn_table(screen, turns)] if turns else [head])


def turns_end(
    ctx: typer.Context,
    turn_id: TurnId,
    *,
    reason: Annotated[
        str,
        typer.Option("--reason", metavar="R", help="internal, deadline or user (cancels it)."),
    ] = "internal",
    dry_run: DryRun = False,
    yes: Yes = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """End an open turn at once, without an answer. Leaves an audit row."""
    from libs.operating.reasons import END_REASONS

    check_one_of("reason", reason, END_REASONS)
    if not dry_run:
        screen_of(ctx).confirm(f"End turn {turn_id} without an answer?", yes=yes)
    _act(
        ctx, data_dir, lambda o: o.acts.end_turn(turn_id, reason, dry_run=dry_run), _ended(turn_id)
    )


def turns_reap(
    ctx: typer.Context,
    turn_id: TurnId,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Let the reaper end a running turn now, with what was shown. Leaves an audit row."""
    if not dry_run:
        screen_of(ctx).confirm(f"End turn {turn_id} with what was shown?", yes=yes)
    _act(ctx, data_dir, lambda o: o.acts.reap_turn(turn_id, dry_run=dry_run), _ended(turn_id))


def dlq_ls(ctx: typer.Context, *, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """List dead letters, the newest first."""
    from services.ops.looking import letters_lines

    letters = operated(ctx, data_dir, lambda operations: operations.reads.dead_letters())
    screen_of(ctx).result(letters, letters_lines(letters))


def dlq_show(
    ctx: typer.Context, letter_id: LetterId, *, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """Show where a record stood and why it was set aside; its size and hash, never its bytes."""
    from services.ops.looking import letter_lines

    letter = operated(ctx, data_dir, lambda operations: operations.reads.dead_letter(letter_id))
    if letter is None:
        raise CommandFailed(_no_letter(letter_id))
    screen_of(ctx).result(letter, letter_lines(letter))


def dlq_redrive(
    ctx: typer.Context,
    letter_id: LetterId,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Let the service handle a dead letter again. Leaves an audit row.

    Its own inbox and rows decide whether it still has an effect; a turn that ended stays ended.
    """
    if not dry_run:
        screen_of(ctx).confirm(f"Handle dead letter {letter_id} again?", yes=yes)

    async def redriven(operations: "Operations") -> dict[str, Any] | None:
        letter = await operations.reads.dead_letter(letter_id)
        if letter is None:
            return None
        return await operations.acts.redrive(letter["service"], letter_id, dry_run=dry_run)

    _act(ctx, data_dir, redriven, _no_letter(letter_id))


def outbox_status(ctx: typer.Context, *, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Say how many events wait for the broker in each service, and for how long."""
    from services.ops.looking import outbox_lines

    async def asked(operations: "Operations") -> tuple[list[Any], list[Any]]:
        return await operations.reads.outbox_status(), await operations.reads.outbox_dead()

    status, dead = operated(ctx, data_dir, asked)
    screen_of(ctx).result({"services": status, "refused": dead}, outbox_lines(status, dead))


def outbox_ls(ctx: typer.Context, *, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """List the events that wait, the oldest first."""
    from services.ops.looking import LISTED, listed
    from services.ops.screen import duration, table

    rows = operated(ctx, data_dir, lambda operations: operations.reads.outbox())
    cells = [
        (row["service"], row["topic"], row["type"], row["key"], duration(row["age_s"]))
        for row in rows[:LISTED]
    ]
    head = f"{listed(rows, 'events')} wait." if rows else "No event waits."
    columns = ("service", "topic", "event", "conversation", "age")
    lines = [head, "", *table(columns, cells, numbers=("age",))] if rows else [head]
    screen_of(ctx).result(rows, lines)


def _act(
    ctx: typer.Context,
    data_dir: Path,
    act: "Callable[[Operations], Awaitable[dict[str, Any] | None]]",
    otherwise: str,
) -> None:
    from services.ops.looking import act_lines

    told = operated(ctx, data_dir, act)
    if told is None:
        raise CommandFailed(otherwise, exit_code=ExitCode.CONFLICT)
    screen_of(ctx).result(told, act_lines(told))


def _ended(turn_id: UUID) -> str:
    return (
        f"Turn {turn_id} is unknown or has ended, so there is nothing to end. "
        f"See `turnwire turns events {turn_id}`."
    )


def _no_letter(letter_id: UUID) -> str:
    return (
        f"There is no dead letter {letter_id}: it was handled since, or its 14 days are over. "
        "See `turnwire dlq ls`."
    )
