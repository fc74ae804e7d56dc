"""The commands of whoever operates: the archive, instructions, and what is kept of payloads."""

# ruff: noqa: PLC0415 -- what a command needs is imported when it runs, so that --help is quick

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from services.ops.cli.command import (
    DEFAULT_DATA_DIR,
    Command,
    DataDir,
    GatewayUrl,
    app,
    screen_of,
)
from services.ops.cli.reaching import asked, fetched
from services.ops.failures import CommandFailed, ExitCode
from services.ops.screen import table

if TYPE_CHECKING:
    from services.ops.archive import Old
    from services.ops.bars import Bar

DAY_S = 86_400
LONGEST_DAYS = 36_500
MAX_TEXT_BYTES = 262_144  # the gateway takes no longer text
DONE_SHOWN = 20  # lines of one run; --json has all

Conversation = Annotated[
    UUID, typer.Argument(metavar="CONVERSATION_ID", help="As the API names it.")
]
OfConversation = Annotated[
    UUID | None,
    typer.Option("--conversation", metavar="ID", help="Of one conversation, not of the tenant."),
]

archive_app = app(
    "archive",
    "Old messages in a table of their own; readers see no difference but speed.",
    ("turnwire archive run --older-than 90", "turnwire archive restore CONVERSATION_ID"),
)
captures_app = app(
    "captures",
    "What is kept of payloads for a while, for the tenant of the API key.",
    ("turnwire captures posture failures --sample 10", "turnwire captures flag CONVERSATION_ID"),
)
instructions_app = app(
    "instructions",
    "The operator's texts at the head of every prompt, for the tenant of the API key.",
    (
        "turnwire instructions show",
        "turnwire instructions set workspace --file workspace.txt",
        "turnwire instructions set workspace --conversation ID --file project.txt",
    ),
)


def register(root: typer.Typer) -> None:
    """Add the commands."""
    examples = (
        "turnwire archive run --older-than 90\nturnwire archive run --older-than 90 --dry-run"
    )
    archive_app.command("run", cls=Command, epilog=examples)(archive_run)
    examples = "turnwire archive restore CONVERSATION_ID"
    archive_app.command("restore", cls=Command, epilog=examples)(archive_restore)
    examples = (
        "turnwire captures posture none --yes\nturnwire captures posture failures --sample 10"
    )
    captures_app.command("posture", cls=Command, epilog=examples)(captures_posture)
    examples = (
        "turnwire captures flag CONVERSATION_ID\nturnwire captures flag CONVERSATION_ID --off"
    )
    captures_app.command("flag", cls=Command, epilog=examples)(captures_flag)
    examples = "turnwire instructions show\nturnwire instructions show --conversation ID --json"
    instructions_app.command("show", cls=Command, epilog=examples)(instructions_show)
    examples = "turnwire instructions set system_policy --file policy.txt"
    instructions_app.command("set", cls=Command, epilog=examples)(instructions_set)
    for group in (archive_app, captures_app, instructions_app):
        root.add_typer(group)


def archive_run(
    ctx: typer.Context,
    *,
    older_than: Annotated[
        float,
        typer.Option(
            "--older-than", metavar="DAYS", min=0, max=LONGEST_DAYS, help="Written longer ago."
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Move messages that are old enough to the archive; what open turns need stays."""
    screen = screen_of(ctx)
    import asyncio

    from services.ops.archive import opened_archive
    from services.ops.bars import bar
    from services.ops.configuration import ops_settings
    from services.ops.logs import log_errors_to_stderr

    log_errors_to_stderr()
    refused: list[str] = []

    async def run(shown: "Bar") -> "list[Old]":
        async with opened_archive(ops_settings(data_dir)) as archive:
            found = await archive.candidates(older_than * DAY_S)
            if dry_run:
                return found
            shown.stage("Moving conversations", total=len(found))
            moved = []
            for old in found:
                try:
                    await archive.put_away(old.conversation_id, old.below)
                except CommandFailed as failure:
                    refused.append(str(failure))  # a turn began meanwhile: the next run takes it
                else:
                    moved.append(old)
                shown.advance(1)
            return moved

    with bar(screen, "Looking for old messages") as shown:
        done = asyncio.run(run(shown))
    total = sum(old.messages for old in done)
    verb = "would be moved" if dry_run else "moved"
    rows = [(str(old.conversation_id), f"{old.messages:,}") for old in done[:DONE_SHOWN]]
    lines = [f"{total:,} messages of {len(done):,} conversations {verb}."]
    if rows:
        lines += ["", *table(("conversation", "messages"), rows, numbers=("messages",))]
    screen.result([old.document() for old in done], lines)
    for text in refused:
        screen.say(text)


def archive_restore(
    ctx: typer.Context, conversation_id: Conversation, *, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """Move all of a conversation back from the archive."""
    screen = screen_of(ctx)
    import asyncio

    from services.ops.archive import opened_archive
    from services.ops.bars import bar
    from services.ops.configuration import ops_settings
    from services.ops.logs import log_errors_to_stderr

    log_errors_to_stderr()

    async def restored() -> int:
        async with opened_archive(ops_settings(data_dir)) as archive:
            return await archive.bring_back(conversation_id)

    with bar(screen, "Moving messages"):
        moved = asyncio.run(restored())
    text = f"{moved:,} messages are back." if moved else "Nothing of it was in the archive."
    screen.result({"conversation_id": str(conversation_id), "moved": moved}, [text])


def captures_posture(
    ctx: typer.Context,
    posture: Annotated[str, typer.Argument(metavar="POSTURE", help="none or failures.")],
    *,
    sample: Annotated[
        int,
        typer.Option(
            "--sample", metavar="N", min=0, max=1_000, help="Of 1,000 turns that went well."
        ),
    ] = 0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: GatewayUrl = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Choose which payloads are kept for a while. `none` also deletes what was kept."""
    screen = screen_of(ctx)
    if posture not in ("none", "failures"):
        msg = f"There is no posture {posture}; there are: none, failures."
        raise CommandFailed(msg, exit_code=ExitCode.USAGE)
    if posture == "none":
        if sample:
            msg = "The posture none keeps nothing, so there is nothing to --sample. Choose one."
            raise CommandFailed(msg, exit_code=ExitCode.USAGE)
        screen.confirm("Keep no payload, and delete those that were kept?", yes=yes)
    body = {"posture": posture, "sampled_per_mille": sample}
    found = asked(screen, "PUT", "/v1/capture", data_dir, url, body=body)
    share = f", and {sample} of 1,000 others" if sample else ""
    kept = "Nothing is kept" if posture == "none" else "Payloads of failures are kept"
    screen.result(found, [f"{kept}{share}."])


def captures_flag(
    ctx: typer.Context,
    conversation_id: Conversation,
    *,
    off: Annotated[bool, typer.Option("--off", help="No longer.")] = False,
    url: GatewayUrl = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Keep all payloads of one conversation for a while, unless the tenant keeps none."""
    screen = screen_of(ctx)
    path = f"/v1/conversations/{conversation_id}/capture"
    found = asked(screen, "PUT", path, data_dir, url, body={"enabled": not off})
    word = "no longer kept" if off else "kept from now on"
    screen.result(found, [f"Payloads of conversation {conversation_id} are {word}."])


def instructions_show(
    ctx: typer.Context,
    *,
    conversation: OfConversation = None,
    url: GatewayUrl = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Show the texts that are current, with their versions."""
    screen = screen_of(ctx)
    from services.ops.showing import instruction_lines

    found = fetched(screen, _instructions(conversation), data_dir, url)
    screen.result(found, instruction_lines(found))


def instructions_set(
    ctx: typer.Context,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="system_policy or workspace.")],
    *,
    file: Annotated[
        Path, typer.Option("--file", metavar="F", help="UTF-8; an empty one takes the text back.")
    ],
    conversation: OfConversation = None,
    url: GatewayUrl = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Set a text. Plans name the version they were made with; older ones stay readable."""
    screen = screen_of(ctx)
    kinds = ("workspace",) if conversation else ("system_policy", "workspace")
    if kind not in kinds:
        msg = f"There is no kind {kind} here; there is: {', '.join(kinds)}."
        raise CommandFailed(msg, exit_code=ExitCode.USAGE)
    from services.ops.showing import instruction_lines

    body = {kind: _text_of(file)}
    found = asked(screen, "PUT", _instructions(conversation), data_dir, url, body=body)
    screen.result(found, instruction_lines(found))


def _instructions(conversation: UUID | None) -> str:
    scope = "" if conversation is None else f"/conversations/{conversation}"
    return f"/v1{scope}/instructions"


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            msg = f"{path} has more than {MAX_TEXT_BYTES:,} bytes. Shorten it."
            raise CommandFailed(msg, exit_code=ExitCode.USAGE)
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read as UTF-8 text ({type(error).__name__}). Name another file."
        raise CommandFailed(msg, exit_code=ExitCode.USAGE) from None
