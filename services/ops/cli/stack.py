"""The commands that start, stop and look at Turnwire on this machine."""

# ruff: noqa: PLC0415 -- what a command needs is imported when it runs, so that --help is quick

from typing import Annotated

import typer

from services.ops.cli.command import DEFAULT_DATA_DIR, Command, DataDir, screen_of
from services.ops.failures import CommandFailed, ExitCode

DEFAULT_PORT = 8080
Port = Annotated[
    int, typer.Option("--port", metavar="P", min=1, max=65_535, help="Of page and API.")
]


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.command(
        cls=Command, epilog="turnwire demo\nturnwire demo --port 9000", rich_help_panel=None
    )(demo)
    root.command(cls=Command, epilog="turnwire up\nturnwire up --data-dir /srv/turnwire")(up)
    root.command(cls=Command, epilog="turnwire down\nturnwire down --data-dir /srv/turnwire")(down)
    root.command(cls=Command, epilog="turnwire status\nturnwire status --json")(status)
    root.command(cls=Command, epilog="turnwire doctor\nturnwire doctor --json")(doctor)
    root.command(cls=Command, epilog="turnwire smoke", hidden=True)(smoke)


def demo(
    ctx: typer.Context, *, data_dir: DataDir = DEFAULT_DATA_DIR, port: Port = DEFAULT_PORT
) -> None:
    """Start everything, and print how to try it.

    The same as `up`, but it prints the API key too. Ctrl-C stops what it started.
    """
    _run_up(ctx, data_dir=data_dir, port=port, shows_key=True)


def up(
    ctx: typer.Context, *, data_dir: DataDir = DEFAULT_DATA_DIR, port: Port = DEFAULT_PORT
) -> None:
    """Start parts and services, and stay until Ctrl-C.

    A part whose URL is set is not started and the given one is used: DATABASE_URL,
    KAFKA_BOOTSTRAP_SERVERS, REDIS_URL, LLM_BASE_URL (with LLM_API_KEY and LLM_MODEL).
    """
    _run_up(ctx, data_dir=data_dir, port=port, shows_key=False)


def _run_up(ctx: typer.Context, *, data_dir: DataDir, port: int, shows_key: bool) -> None:
    screen = screen_of(ctx)
    screen.say(f"Starting Turnwire in {data_dir.absolute()}")
    import asyncio

    from services.ops.data_folder import DataFolder
    from services.ops.logs import log_errors_to_stderr
    from services.ops.up import up as run_up

    log_errors_to_stderr()
    asyncio.run(run_up(screen, DataFolder(data_dir), port=port, shows_key=shows_key))


def down(ctx: typer.Context, *, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Stop what runs in a data folder."""
    screen = screen_of(ctx)
    import asyncio

    from deploy.local.state import stop_recorded
    from services.ops.bars import bar

    with bar(screen, "Stopping"):
        stopped = [entry.name for entry in asyncio.run(stop_recorded(data_dir.absolute()))]
    text = f"Stopped {', '.join(stopped)}." if stopped else f"Nothing ran in {data_dir.absolute()}."
    screen.result({"stopped": stopped}, [text])


def status(ctx: typer.Context, *, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Show the health of parts and services, and the deployment's figures.

    On this machine with process, port, uptime and log file of each. Where the environment names a
    database (TURNWIRE_OPS__DATABASE_URL), of that deployment, wherever it runs. Exit code 3 if
    something is not ready.
    """
    screen = screen_of(ctx)
    import asyncio

    from services.ops.bars import bar
    from services.ops.data_folder import DataFolder
    from services.ops.logs import log_errors_to_stderr
    from services.ops.looking import overview_lines
    from services.ops.status import deployment_of, is_named, status_lines, status_of

    log_errors_to_stderr()
    deployment, why = None, ""
    with bar(screen, "Looking"):
        found = asyncio.run(status_of(DataFolder(data_dir)))
        is_local = found.started_at is not None
        if is_local or is_named():
            deployment, why = asyncio.run(deployment_of(data_dir))
    lines = list(status_lines(screen, found)) if is_local or not is_named() else []
    if deployment is not None:
        lines += [*([""] if lines else []), *overview_lines(screen, deployment)]
    elif why:
        lines += [*([""] if lines else []), why]
    document = {**found.document(), "deployment": deployment, "deployment_error": why or None}
    if not is_local and deployment is not None:
        healths = {one["health"] for one in deployment["services"]}
        document["ready"] = healths <= {"ready", "degraded"}
    screen.result(document, lines)
    if not document["ready"]:
        raise typer.Exit(ExitCode.NOT_READY)


def doctor(
    ctx: typer.Context, *, data_dir: DataDir = DEFAULT_DATA_DIR, port: Port = DEFAULT_PORT
) -> None:
    """Check what Turnwire stands on, with fixes.

    Looks at the parts that the environment names, else at a local stack's. Exit code 3 if
    something is wrong.
    """
    screen = screen_of(ctx)
    screen.say("Looking at versions, settings, parts, topics, schema, rights, clock and disk")
    import asyncio
    import os
    from dataclasses import asdict

    from services.ops.bars import bar
    from services.ops.configuration import Configuration, ops_settings
    from services.ops.data_folder import DataFolder
    from services.ops.doctor import Doctor
    from services.ops.logs import log_errors_to_stderr
    from services.ops.screen import table

    log_errors_to_stderr()
    folder = DataFolder(data_dir)
    configuration = Configuration(folder, os.environ)
    settings = ops_settings(data_dir)
    with bar(screen, "Looking"):
        findings = asyncio.run(Doctor(folder, configuration, settings, port=port).findings())
    failed = [finding for finding in findings if finding.verdict == "fail"]
    rows = [(screen.state(f.verdict), f.name, f.detail) for f in findings]
    lines = [
        f"{len(failed)} of {len(findings)} looks found something wrong." if failed else "All well.",
        "",
        *table(("state", "look", "found"), rows),
        *(["", "What to do:"] if any(f.fix for f in findings) else []),
        *(f"  {f.name}: {f.fix}" for f in findings if f.fix),
    ]
    document = {"ok": not failed, "findings": [asdict(finding) for finding in findings]}
    screen.result(document, lines)
    if failed:
        raise typer.Exit(ExitCode.NOT_READY)


def smoke(ctx: typer.Context) -> None:
    """Run the whole path once in a temporary folder: two questions, compared with the rows."""
    screen = screen_of(ctx)
    screen.say("Starting Turnwire in a temporary folder")
    import asyncio

    from services.ops.logs import log_errors_to_stderr
    from services.ops.smoke import smoke as run_smoke

    log_errors_to_stderr()
    try:
        asyncio.run(run_smoke(screen))
    except asyncio.CancelledError:
        msg = "You stopped it; everything it had started was stopped."
        raise CommandFailed(msg) from None
