"""What a service makes of exactly the variables that a deployment gives it."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from deploy.docs_settings import READ_ELSEWHERE, settings_classes, variables_of
from libs.settings import FILE_SUFFIX, ServiceSettings

SECRETS = {  # what somebody would put under each key, by the end of the variable's name
    "DATABASE_URL": "postgresql://somebody:secret@postgres:5432/turnwire",
    "REDIS_URL": "redis://:secret@redis:6379/0",
    "MASTER_KEY": "0f" * 32,
    "API_KEY": "sk-secret",
    "PASSWORD": "secret",
    "HEADERS": "Authorization=Basic%20c2VjcmV0",
}


def secret_for(variable: str) -> str:
    """A value that fits a variable; every secret has to be known here."""
    (fits,) = [
        value
        for ending, value in SECRETS.items()
        if variable.removesuffix(FILE_SUFFIX).endswith(ending)
    ]
    return fits


def read_by(service: str) -> set[str]:
    """Names of the variables that a service reads, itself or through a library."""
    return {v.name for v in variables_of(settings_classes()[service])} | READ_ELSEWHERE.keys()


def settings_given(
    service: str, given: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> ServiceSettings:
    """The settings as the service itself reads them when it starts; it refuses what is wrong.

    Args:
        given: Paths of files may be those of a container: nothing is read from the root.
    """
    for name in list(os.environ):
        if name.startswith(("TURNWIRE_", "KAFKA_", "LLM_", "REDIS_", "OTEL_", "DATABASE_")):
            monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return settings_classes()[service]()  # type: ignore[call-arg]  # from the environment


def mounted(folder: Path, key: str, content: str) -> str:
    """Put a file where a container would have it; its path."""
    path = folder / key
    path.write_text(content, encoding="utf-8")
    return str(path)
