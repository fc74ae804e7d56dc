"""The commands that rebuild a projection, and compare rows, outboxes and topics."""

# ruff: noqa: PLC0415 -- what a command needs is imported when it runs, so that --help is quick

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.ops.cli.command import (
    DEFAULT_DATA_DIR,
    Command,
    DataDir,
    app,
    check_one_of,
    screen_of,
)
from services.ops.cli.watching import reached
from services.ops.failures import CommandFailed, ExitCode

if TYPE_CHECKING:
    from services.ops.projections import Source

replay_app = app(
    "replay",
    "Tables that follow from the turns alone, rebuilt at will.",
    ("turnwire replay ls", "turnwire replay project turns --from topic"),
)


def register(root: typer.Typer) -> None:
    """Add the commands."""
    examples = (
        "turnwire replay project turns --from postgres\n"
        "turnwire replay project turns --from topic --out turns.sqlite"
    )
    replay_app.command("project", cls=Command, epilog=examples)(replay_project)
    replay_app.command("ls", cls=Command, epilog="turnwire replay ls")(replay_ls)
    root.add_typer(replay_app)
    root.command(cls=Command, epilog="turnwire reconcile --dry-run")(reconcile)


def replay_ls(ctx: typer.Context) -> None:
    """List what can be replayed, and what is refused because it has effects."""
    from services.ops.projections import EFFECTS, PROJECTIONS
    from services.ops.screen import table

    rows = [(name, "yes", text) for name, text in PROJECTIONS.items()]
    rows += [(name, "no", f"has effects: {text}") for name, text in EFFECTS.items()]
    document = {"projections": dict(PROJECTIONS), "refused": dict(EFFECTS)}
    screen_of(ctx).result(document, table(("name", "replayable", "what it does"), rows))


def replay_project(
    ctx: typer.Context,
    projection: Annotated[str, typer.Argument(metavar="NAME", help="Such as turns.")],
    *,
    source: Annotated[
        str, typer.Option("--from", metavar="SOURCE", help="postgres or topic.")
    ] = "postgres",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="F", help="SQLite file; else in the data folder."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Begin at the beginning, not where it stopped.")
    ] = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Rebuild a projection, from rows or from its topic; stopped, it goes on where it was.

    Writes nothing but its own file.
    """
    screen = screen_of(ctx)
    from services.ops.bars import bar
    from services.ops.replaying import check_replayable, replay

    check_replayable(projection)
    check_one_of("source", source, ("postgres", "topic"))
    chosen: Source = "topic" if source == "topic" else "postgres"
    path = out or data_dir / "projections" / f"{projection}.sqlite"

    with bar(screen, "Connecting") as shown:
        done = reached(data_dir, lambda ops: replay(shown, ops, path, chosen, again=again))
    what = "records" if chosen == "topic" else "turns"
    total = sum(done["turns"].values())
    lines = [
        f"{path} holds {total:,} turns; {done['read']:,} {what} were read just now.",
        *(f"  {number:>8,}  {screen.state(state)}" for state, number in done["turns"].items()),
    ]
    if done["was_complete"] and chosen == "postgres":
        lines.append("It was complete before; --again rebuilds it.")
    screen.result(done, lines)


def reconcile(
    ctx: typer.Context,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what differs.")] = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Say what differs between rows, outboxes and topics. Exit code 5 if something does."""
    screen = screen_of(ctx)
    if not dry_run:
        msg = (
            "reconcile only looks: the services' own sweeps mend what can be mended, so there is "
            "nothing it could change. Add --dry-run."
        )
        raise CommandFailed(msg, exit_code=ExitCode.USAGE)
    from services.ops.bars import bar
    from services.ops.reconciling import reconcile as compare
    from services.ops.screen import table

    with bar(screen, "Connecting") as shown:
        report = reached(data_dir, lambda operations: compare(shown, operations))
    number = sum(report.counts.values())
    head = f"{number:,} differences" if number else "Nothing differs"
    lines = [f"{head} among {report.turns:,} turns and {report.records:,} records of turn.events."]
    if report.found:
        rows = [(d.kind, d.subject, d.where, d.detail) for d in report.found]
        lines += ["", *table(("kind", "what", "between", "detail"), rows), ""]
        lines.append("Read a turn with `turnwire turns events TURN_ID`.")
    screen.result(report.document(), lines)
    if number:
        raise typer.Exit(ExitCode.INVARIANT)
