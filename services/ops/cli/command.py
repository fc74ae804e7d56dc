"""What all commands share: help that starts with examples, and the options that work everywhere."""

# mypy and ruff see these names through typer, which ships click inside.
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand, TyperGroup

from services.ops.failures import CommandFailed, ExitCode
from services.ops.screen import Screen

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

EVERYWHERE = (
    ("--json", "Print the result as JSON."),
    ("-q, --quiet", "Print results and errors only."),
    ("--no-input", "Never ask."),
)
DEFAULT_DATA_DIR = Path(".turnwire")

DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        metavar="D",
        envvar="TURNWIRE_DATA_DIR",
        show_default=False,
        help="Folder of the local stack; .turnwire in the current folder if left out.",
    ),
]
GatewayUrl = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Of the gateway; else TURNWIRE_URL or the local one."
    ),
]


class Command(TyperCommand):
    """A command whose epilog holds its examples, one a line."""

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Examples, usage, text, options."""
        _write_examples(self.epilog, formatter)
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        _write_everywhere(formatter)


class Group(TyperGroup):
    """A group of commands whose epilog holds examples, one a line."""

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Examples, usage, text, commands."""
        _write_examples(self.epilog, formatter)
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        _write_everywhere(formatter)


def app(name: str, text: str, examples: Sequence[str]) -> typer.Typer:
    """A group of commands in the style of this command line."""
    return typer.Typer(
        name=name,
        cls=Group,
        help=text,
        epilog="\n".join(examples),
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def screen_of(context: typer.Context) -> Screen:
    """How this run speaks, as ``main`` decided."""
    found = context.find_object(Screen)
    return found if found is not None else Screen()


def split_everywhere(arguments: Sequence[str]) -> tuple[Screen, list[str]]:
    """Take out the options that work everywhere, before or behind a command's name.

    Everything behind ``--`` is left alone.
    """
    rest: list[str] = []
    flags: set[str] = set()
    for n, argument in enumerate(arguments):
        if argument == "--":
            rest += arguments[n:]
            break
        if argument in ("--json", "-q", "--quiet", "--no-input"):
            flags.add(argument)
        else:
            rest.append(argument)
    screen = Screen(
        as_json="--json" in flags,
        quiet=bool(flags & {"-q", "--quiet"}),
        no_input="--no-input" in flags,
    )
    return screen, rest


def check_one_of(what: str, word: str, words: Collection[str]) -> None:
    """Do nothing for a word that is known.

    Args:
        what: Such as ``state``, for the text of the refusal.

    Raises:
        CommandFailed: It is none of the words; the nearest one is suggested.
    """
    if word in words:
        return
    from difflib import get_close_matches  # noqa: PLC0415 -- for a slip alone

    near = get_close_matches(word, words, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    msg = f"There is no {what} {word}.{hint} There are: {', '.join(words)}."
    raise CommandFailed(msg, exit_code=ExitCode.USAGE)


def _write_examples(examples: str | None, formatter: "HelpFormatter") -> None:
    if examples:
        with formatter.section("Examples"):
            for line in examples.splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
        formatter.write("\n")


def _write_everywhere(formatter: "HelpFormatter") -> None:
    with formatter.section("Everywhere"):
        formatter.write_dl(list(EVERYWHERE))
