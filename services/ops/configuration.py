"""What is set for the services: shown with secrets masked, and checked without starting them."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from deploy.docs_settings import Variable, settings_classes, variables_of
from deploy.local.stack import without_login
from libs.errors import MisconfiguredSettings
from libs.settings import FILE_SUFFIX
from services.ops.data_folder import DataFolder
from services.ops.settings import OpsSettings

MASK = "********"
Origin = Literal["environment", "file", "data folder", "default", "missing"]


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting in force, fit to be printed."""

    service: str
    variable: str
    value: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Mistake:
    """One setting that would stop a service from starting."""

    service: str
    setting: str
    why: str


class Configuration:
    """The settings of all services as this environment and a data folder give them."""

    def __init__(self, folder: DataFolder, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._of_folder = folder.environment(environ)

    def shown(self) -> Iterator[Shown]:
        """Every setting of every service."""
        for service, settings in settings_classes().items():
            for variable in variables_of(settings):
                yield self._shown(service, variable)

    def mistakes(self) -> list[Mistake]:
        """What is missing or out of bounds, by service."""
        self.adopt()
        found: list[Mistake] = []
        for service, settings in settings_classes().items():
            try:
                settings()  # type: ignore[call-arg]  # the environment has them
            except ValidationError as error:
                found += [
                    Mistake(service, ".".join(map(str, detail["loc"])), detail["msg"])
                    for detail in error.errors(include_input=False, include_url=False)
                ]
            except MisconfiguredSettings as error:
                found.append(Mistake(service, FILE_SUFFIX, str(error)))
        return found

    def adopt(self) -> None:
        """Put the data folder's variables into this process's environment where it lacks them."""
        for name, value in self._of_folder.items():
            if f"{name}{FILE_SUFFIX}" not in os.environ:
                os.environ.setdefault(name, value)

    def _shown(self, service: str, variable: Variable) -> Shown:
        value, origin = self._found(variable)
        if variable.is_secret:
            value = MASK if value else ""
        elif "://" in value:
            value = without_login(value)
        return Shown(service, variable.name, value, origin)

    def _found(self, variable: Variable) -> tuple[str, Origin]:
        name = variable.name
        if value := self._environ.get(name):
            return value, "environment"
        if path := self._environ.get(f"{name}{FILE_SUFFIX}"):
            return (MASK if variable.is_secret else path), "file"
        if value := self._of_folder.get(name):
            return value, "data folder"
        if variable.default is None:
            return "", "missing"
        return variable.default, "default"


def ops_settings(path: Path) -> OpsSettings:
    """The settings of the command line: from the environment, else from a data folder.

    Raises:
        MisconfiguredSettings: A value is out of bounds.
    """
    Configuration(DataFolder(path), os.environ).adopt()
    try:
        return OpsSettings()
    except ValidationError as error:
        details = error.errors(include_input=False, include_url=False)
        said = "; ".join(f"{'.'.join(map(str, d['loc']))}: {d['msg']}" for d in details)
        msg = f"The settings of the command line cannot be used: {said}. Correct them."
        raise MisconfiguredSettings(msg) from None
