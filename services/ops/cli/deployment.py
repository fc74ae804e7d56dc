"""The commands for whoever deploys: one service, the schema, the topics, the settings."""

# ruff: noqa: PLC0415 -- what a command needs is imported when it runs, so that --help is quick

import os
import sys
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
from services.ops.failures import CommandFailed, ExitCode
from services.ops.screen import Screen, table

if TYPE_CHECKING:
    from libs.postgres.migrations import Migration

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]

topics_app = app(
    "topics",
    "The topics on the broker.",
    ("turnwire topics apply", "turnwire topics apply --dry-run"),
)
config_app = app(
    "config",
    "The settings in force, secrets masked.",
    ("turnwire config show", "turnwire config check ingestion"),
)


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.command(cls=Command, epilog="turnwire run ingestion")(run)
    root.command(cls=Command, epilog="turnwire migrate\nturnwire migrate --dry-run")(migrate)
    root.command(cls=Command, epilog="turnwire version\nturnwire version --json")(version)
    root.command(cls=Command, epilog="turnwire asyncapi > asyncapi.yaml")(asyncapi)
    examples = "turnwire topics apply\nturnwire topics apply --dry-run --json"
    topics_app.command("apply", cls=Command, epilog=examples)(topics_apply)
    config_app.command("show", cls=Command, epilog="turnwire config show --json")(config_show)
    config_app.command("check", cls=Command, epilog="turnwire config check")(config_check)
    root.add_typer(topics_app)
    root.add_typer(config_app)


def run(
    ctx: typer.Context,
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="Such as ingestion.")],
) -> None:
    """Run one service in this process.

    Its settings come from the environment; see `turnwire config check`.
    """
    del ctx
    from services.ops.service_environment import SERVICES

    name = _service_named(service, SERVICES)
    sys.stdout.flush()
    # Replaces this process: signals and exit code are then the service's own.
    os.execv(sys.executable, [sys.executable, "-m", f"services.{name}"])  # noqa: S606 -- ours


def _service_named(written: str, services: tuple[str, ...]) -> str:
    name = written.replace("-", "_")
    check_one_of("service", name, services)
    return name


def migrate(ctx: typer.Context, *, dry_run: DryRun = False) -> None:
    """Bring the database to this release.

    DATABASE_URL names it. Files that were applied are never run again. Sets the passwords of the
    services' roles where TURNWIRE_<SERVICE>__DATABASE_URL holds one. Each may be given by a file.
    """
    screen = screen_of(ctx)
    from libs.settings import with_files
    from services.ops.service_environment import ROLE_URLS, role_passwords

    environ = with_files(os.environ, ("DATABASE_URL", *ROLE_URLS))
    url = environ.get("DATABASE_URL")
    if not url:
        msg = (
            "DATABASE_URL is not set, so there is no database to migrate. Set it to an account "
            "that may create schemas and roles; `turnwire up` migrates its own database itself."
        )
        raise CommandFailed(msg, exit_code=ExitCode.NOT_READY)
    import asyncio

    from services.ops import migrations
    from services.ops.bars import bar
    from services.ops.database import knock

    passwords = role_passwords(environ)

    async def migrated() -> "list[Migration]":
        await knock(url, "DATABASE_URL")
        if dry_run:
            return await migrations.pending_migrations(url)
        return await migrations.migrate(url, passwords=passwords)

    with bar(screen, "Migrating"):
        files = asyncio.run(migrated())
    _tell_migrations(screen, files, "would be applied" if dry_run else "applied")
    if dry_run:
        return
    if passwords:
        screen.say(f"Passwords set: {', '.join(passwords)}")


def _tell_migrations(screen: Screen, files: "list[Migration]", verb: str) -> None:
    names = [f"{file.unit}/{file.name}" for file in files]
    head = f"{len(names)} {verb}." if names else "Nothing to do: the schema is up to date."
    screen.result({verb.replace(" ", "_"): names}, [head, *(f"  {name}" for name in names)])


def topics_apply(
    ctx: typer.Context, *, dry_run: DryRun = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """Create missing topics and set what differs; running it again changes nothing.

    TURNWIRE_OPS__TOPICS_PROFILE says how many partitions and replicas: local or production.
    """
    screen = screen_of(ctx)
    import asyncio
    from dataclasses import asdict

    from services.ops import topics
    from services.ops.bars import bar
    from services.ops.configuration import ops_settings
    from services.ops.logs import log_errors_to_stderr

    log_errors_to_stderr()
    settings = ops_settings(data_dir)
    bootstrap, profile = settings.kafka_bootstrap_servers, settings.topics_profile
    security = topics.security_of(settings)
    if dry_run:
        with bar(screen, "Asking Kafka"):
            missing = asyncio.run(topics.missing(bootstrap, profile=profile, security=security))
        text = f"Would be created: {', '.join(missing)}." if missing else "No topic is missing."
        screen.result({"would_be_created": missing}, [text])
        return
    with bar(screen, "Applying topics"):
        done = asyncio.run(topics.apply_all(bootstrap, profile=profile, security=security))
    lines = [
        f"{len(names)} {what}: {', '.join(names)}" for what, names in asdict(done).items() if names
    ]
    screen.result(asdict(done), lines)
    if done.repartitioned:
        screen.say("Partition counts differ and are left alone: a new count would break the order.")


def config_show(ctx: typer.Context, *, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Print every setting in force and where it comes from; secrets are masked."""
    screen = screen_of(ctx)
    from dataclasses import asdict

    from services.ops.configuration import Configuration
    from services.ops.data_folder import DataFolder

    shown = list(Configuration(DataFolder(data_dir), os.environ).shown())
    rows = [(s.service, s.variable, s.value, s.origin) for s in shown]
    columns = ("service", "variable", "value", "from")
    screen.result([asdict(setting) for setting in shown], table(columns, rows))


def config_check(
    ctx: typer.Context,
    service: Annotated[
        str, typer.Argument(metavar="[SERVICE]", help="Only this one's, as in its container.")
    ] = "",
    *,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Say which settings would keep a service from starting, and which nobody reads.

    Exit code 1 if there are any of either.
    """
    screen = screen_of(ctx)
    from dataclasses import asdict

    from services.ops.configuration import Configuration
    from services.ops.data_folder import DataFolder
    from services.ops.service_environment import SERVICES

    configuration = Configuration(DataFolder(data_dir), os.environ)
    unread = configuration.unread()
    chosen = [_service_named(service, (*SERVICES, "ops"))] if service else []
    mistakes = configuration.mistakes(chosen)
    document = {
        "ok": not mistakes and not unread,
        "mistakes": [asdict(mistake) for mistake in mistakes],
        "unread": [{"variable": one.setting, "why": one.why} for one in unread],
    }
    rows = [(m.service, m.setting, m.why) for m in mistakes]
    lines = [f"{chosen[0] if chosen else 'Every service'} would start with these settings."]
    if mistakes:
        lines = [
            f"{len(mistakes)} settings keep a service from starting.",
            "",
            *table(("service", "setting", "why"), rows),
            "",
            "Set them as docs/settings.md says.",
        ]
    if unread:
        lines += ["", f"{len(unread)} variables have names that mean nothing here.", ""]
        lines += table(("variable", "why"), [(one.setting, one.why) for one in unread])
    screen.result(document, lines)
    if mistakes or unread:
        raise typer.Exit(ExitCode.FAILED)


def version(ctx: typer.Context) -> None:
    """Print the version."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        found = version_of("turnwire")
    except PackageNotFoundError:
        found = "unknown"
    python = platform.python_version()
    screen_of(ctx).result({"turnwire": found, "python": python}, [f"turnwire {found}"])


def asyncapi(ctx: typer.Context) -> None:
    """Print the AsyncAPI document of all topics."""
    import yaml

    from schemas.export import ASYNCAPI_PATH, generated_files
    from schemas.topic_files import load_topics

    text = generated_files(load_topics())[ASYNCAPI_PATH]
    screen_of(ctx).result(yaml.safe_load(text), [text.rstrip()])
