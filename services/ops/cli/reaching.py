"""Where the gateway is, and one question to it."""

# ruff: noqa: PLC0415 -- what a command needs is imported when it runs, so that --help is quick

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from services.ops.cli.command import DEFAULT_DATA_DIR
from services.ops.failures import CommandFailed, ExitCode
from services.ops.screen import Screen

if TYPE_CHECKING:
    from services.ops.gateway import Document


def fetched(
    screen: Screen,
    path: str,
    data_dir: Path = DEFAULT_DATA_DIR,
    url: str | None = None,
    *,
    query: Mapping[str, object] | None = None,
) -> "Document":
    """A document of the gateway.

    Args:
        query: Parameters; those that are None are left out.
    """
    named = {name: value for name, value in (query or {}).items() if value is not None}
    if named:
        path += "?" + urlencode({name: str(value) for name, value in named.items()})
    return asked(screen, "GET", path, data_dir, url)


def asked(
    screen: Screen,
    method: str,
    path: str,
    data_dir: Path,
    url: str | None,
    *,
    body: Mapping[str, Any] | None = None,
) -> "Document":
    """What the gateway answers to a request that may be sent twice."""
    import asyncio

    from services.ops.bars import bar
    from services.ops.gateway import Gateway

    address, key = target(data_dir, url)

    async def answered() -> "Document":
        async with Gateway.opened(address, key) as gateway:
            return await gateway.ask(method, path, body=body)

    with bar(screen, f"Asking {address}"):
        return asyncio.run(answered())


def target(data_dir: Path, url: str | None) -> tuple[str, str]:
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
