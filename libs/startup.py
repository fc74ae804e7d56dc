"""How a process begins and ends: settings, log, event loop, exit code.

Beside ``libs.process``, so that the gateway, which consumes nothing, loads no consumer.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import uvloop
from pydantic import ValidationError

from libs.errors import ChatError, MisconfiguredSettings
from libs.garbage import collect_rarely
from libs.kafka.security import KafkaSecurity
from libs.settings import ServiceSettings
from libs.telemetry.logging import Level, configure_logging, get_logger

LEVELS: Mapping[str, Level] = {
    "DEBUG": "debug",
    "INFO": "info",
    "WARNING": "warning",
    "ERROR": "error",
}
EXIT_FAILED = 1
EXIT_USAGE = 2

S = TypeVar("S", bound=ServiceSettings)


def run(
    name: str,
    settings: Callable[[], S],
    work: Callable[[S], Awaitable[None]],
    *,
    exit_failed: int = EXIT_FAILED,
) -> int:
    """The whole life of a process.

    Args:
        settings: Reads them from the environment.
        work: Opens the adapters and serves until it is told to end.

    Returns:
        The exit code: 0 after an orderly end, 2 for settings that cannot be used, ``exit_failed``
        otherwise.
    """
    try:
        read = settings()
    except ValidationError as error:
        sys.stderr.write(f"{name} cannot start, its settings are wrong: {explain(error)}\n")
        return EXIT_USAGE
    except ChatError as error:
        sys.stderr.write(f"{name} cannot start: {error}\n")
        return EXIT_USAGE
    configure_logging(name, log_format=read.log_format, level=LEVELS[read.log_level])
    collect_rarely()
    try:
        uvloop.run(_awaited(work, read))
    except MisconfiguredSettings as error:
        get_logger().error("service.misconfigured", code=error.code, reason=str(error))
        return EXIT_USAGE
    except ChatError as error:
        get_logger().error("service.failed", code=error.code, reason=str(error))
        return exit_failed
    return 0


async def _awaited(work: Callable[[S], Awaitable[None]], settings: S) -> None:
    await work(settings)


def explain(error: ValidationError) -> str:
    """Which settings are wrong and why, without their values: one of them may be a secret."""
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_context=False, include_input=False)
    )


def kafka_security(settings: ServiceSettings) -> KafkaSecurity:
    """How this process proves who it is to the brokers."""
    return KafkaSecurity(
        protocol=settings.kafka_security_protocol,
        mechanism=settings.kafka_sasl_mechanism,
        username=settings.kafka_username,
        password=settings.kafka_password,
    )


def release() -> str:
    """Version of the installed package."""
    try:
        return version("turnwire")
    except PackageNotFoundError:
        return "unpackaged"
