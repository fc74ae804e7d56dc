"""The commands for API keys and door keys."""

# ruff: noqa: PLC0415 -- what a command needs is imported when it runs, so that --help is quick

from typing import Annotated
from uuid import UUID

import typer

from services.ops.cli.command import DEFAULT_DATA_DIR, Command, DataDir, app, screen_of
from services.ops.failures import CommandFailed, ExitCode
from services.ops.screen import table

SCOPES = ("chat", "read", "admin", "captures")

keys_app = app(
    "keys",
    "API keys of tenants, and door keys of other front ends.",
    ("turnwire keys create --tenant acme", "turnwire keys ls", "turnwire keys revoke KEY_ID"),
)


def register(root: typer.Typer) -> None:
    """Add the commands."""
    examples = (
        "turnwire keys create --tenant acme --principal ada",
        "turnwire keys create --tenant acme --scope read --json",
        "turnwire keys create --tenant acme --door",
    )
    keys_app.command("create", cls=Command, epilog="\n".join(examples))(create)
    keys_app.command("ls", cls=Command, epilog="turnwire keys ls --tenant acme --json")(ls)
    keys_app.command("revoke", cls=Command, epilog="turnwire keys revoke KEY_ID --yes")(revoke)
    root.add_typer(keys_app)


def create(
    ctx: typer.Context,
    *,
    tenant: Annotated[str, typer.Option("--tenant", metavar="T", help="Made if missing.")],
    principal: Annotated[
        str, typer.Option("--principal", metavar="P", help="Who asks; made if missing.")
    ] = "default",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", help="chat, read, admin or captures; repeat it. Default: chat and read."
        ),
    ] = None,
    door: Annotated[
        bool, typer.Option("--door", help="A key that signs records of the request topic.")
    ] = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Make a key and print it; its secret cannot be shown again.

    A conversation belongs to the principal, so a new key of the same principal sees it too.
    """
    screen = screen_of(ctx)
    scopes = tuple(dict.fromkeys(scope or ("chat", "read")))
    _check_names(tenant, principal, scopes)
    import asyncio

    from services.ops.bars import bar
    from services.ops.configuration import ops_settings
    from services.ops.keys import MadeKey, opened_ring
    from services.ops.logs import log_errors_to_stderr

    log_errors_to_stderr()

    async def make() -> MadeKey:
        async with opened_ring(ops_settings(data_dir)) as ring:
            if door:
                return await ring.create_door_key(tenant)
            return await ring.create(tenant, principal, scopes)

    with bar(screen, "Asking Postgres"):
        made = asyncio.run(make())
    document = made.document()
    what = "Door key" if door else "API key"
    lines = [
        f"{what} of tenant {tenant}: {document['key']}",
        f"  key id     {made.key_id}",
        f"  tenant id  {made.tenant_id}",
    ]
    if made.principal_id is not None:
        lines += [
            f"  principal  {principal} {made.principal_id}",
            f"  scopes     {', '.join(scopes)}",
        ]
    screen.result(document, lines)
    screen.say("Keep it now: it is not shown again.")


def ls(
    ctx: typer.Context,
    *,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="T", help="Only this tenant's.")
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List keys without their secrets, oldest first."""
    screen = screen_of(ctx)
    import asyncio

    from services.ops.bars import bar
    from services.ops.configuration import ops_settings
    from services.ops.keys import Row, opened_ring
    from services.ops.logs import log_errors_to_stderr

    log_errors_to_stderr()

    async def listed() -> list[Row]:
        async with opened_ring(ops_settings(data_dir)) as ring:
            return await ring.all(tenant)

    with bar(screen, "Asking Postgres"):
        rows = asyncio.run(listed())
    cells = [
        (
            str(row["key_id"]),
            str(row["kind"]),
            screen.state("revoked" if row["revoked_at"] else "ok"),
            str(row["tenant"] or "all tenants"),
            str(row["principal"] or ""),
            str(row["prefix"] or ""),
            ", ".join(row["scopes"] or ()),
            row["created_at"].isoformat(timespec="seconds"),
        )
        for row in rows
    ]
    columns = ("key id", "kind", "state", "tenant", "principal", "begins", "scopes", "created")
    lines = (
        [f"{len(rows)} keys."] if not rows else [f"{len(rows)} keys.", "", *table(columns, cells)]
    )
    screen.result(rows, lines)


def revoke(
    ctx: typer.Context,
    key_id: Annotated[UUID, typer.Argument(metavar="KEY_ID", help="As `keys ls` shows it.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Revoke an API key or a door key; it works for at most 5 seconds more."""
    screen = screen_of(ctx)
    screen.confirm(f"Revoke key {key_id}? Its sessions and streams end.", yes=yes)
    import asyncio

    from services.ops.bars import bar
    from services.ops.configuration import ops_settings
    from services.ops.keys import opened_ring
    from services.ops.logs import log_errors_to_stderr

    log_errors_to_stderr()

    async def revoked() -> bool:
        async with opened_ring(ops_settings(data_dir)) as ring:
            return await ring.revoke(key_id)

    with bar(screen, "Asking Postgres"):
        is_revoked = asyncio.run(revoked())
    if not is_revoked:
        msg = f"No key {key_id} works here: it is unknown or revoked already. See `keys ls`."
        raise CommandFailed(msg)
    screen.result({"revoked": str(key_id)}, [f"Key {key_id} is revoked."])


def _check_names(tenant: str, principal: str, scopes: tuple[str, ...]) -> None:
    longest = 200  # as the tables of the gateway allow
    for option, name in (("--tenant", tenant), ("--principal", principal)):
        if not 1 <= len(name.strip()) <= longest:
            msg = f"{option} is a name of 1 to {longest} characters. Give another one."
            raise CommandFailed(msg, exit_code=ExitCode.USAGE)
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown:
        msg = f"There is no scope {', '.join(unknown)}; there are: {', '.join(SCOPES)}."
        raise CommandFailed(msg, exit_code=ExitCode.USAGE)
