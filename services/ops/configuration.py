"""What is set for the services: shown with secrets masked, and checked without starting them."""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from deploy.docs_settings import (
    COMPOSE_ONLY,
    READ_ELSEWHERE,
    Variable,
    settings_classes,
    variables_of,
)
from deploy.local.stack import without_login
from libs.errors import MisconfiguredSettings
from libs.settings import FILE_SUFFIX
from libs.telemetry.variables import READ_BY_LIBRARY
from services.ops.data_folder import DataFolder
from services.ops.settings import OpsSettings

MASK = "********"
OUR_PREFIX = "TURNWIRE_"
NEAR = 0.75  # share of letters in common from which a name counts as a slip of another
SLIP = 0.88  # the same for names without our prefix: two letters swapped in nine, and no more
FOR_TESTS = ("TURNWIRE_FAILPOINT", "TURNWIRE_TEST_", "TURNWIRE_SCREENSHOTS")  # beginnings
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

    def mistakes(self, services: Collection[str] = ()) -> list[Mistake]:
        """What is missing or out of bounds, by service.

        Args:
            services: Which; empty is every one. A container holds the settings of one alone.
        """
        self.adopt()
        found: list[Mistake] = []
        for service, settings in settings_classes().items():
            if services and service not in services:
                continue
            try:
                settings()  # type: ignore[call-arg]  # the environment has them
            except ValidationError as error:
                fields = zip(settings.model_fields, variables_of(settings), strict=True)
                names = {field: variable.name for field, variable in fields}
                found += [
                    Mistake(service, names.get(where, where), detail["msg"])
                    for detail in error.errors(include_input=False, include_url=False)
                    for where in [".".join(map(str, detail["loc"]))]
                ]
            except MisconfiguredSettings as error:
                found.append(Mistake(service, FILE_SUFFIX, str(error)))
        return found

    def unread(self) -> list[Mistake]:
        """Variables of ours that nobody reads, each with the name that was probably meant.

        Without our prefix a name is taken for ours only where it is nearly one that we read.
        """
        known = known_names()
        found: list[Mistake] = []
        for name in sorted(self._environ.keys() - READ_BY_LIBRARY):
            ending = FILE_SUFFIX if name.endswith(FILE_SUFFIX) else ""
            bare = name.removesuffix(ending)
            if name in known or bare in known or name.startswith(FOR_TESTS):
                continue
            is_ours = name.startswith(OUR_PREFIX)
            near = get_close_matches(bare, known, n=1, cutoff=NEAR if is_ours else SLIP)
            if near:
                why = f"nobody reads it; did you mean {near[0]}{ending}?"
                found.append(Mistake("", name, why))
            elif is_ours:
                found.append(Mistake("", name, "nobody reads it"))
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


def known_names() -> frozenset[str]:
    """Every variable of ours that something reads."""
    read = {
        variable.name
        for settings in settings_classes().values()
        for variable in variables_of(settings)
    }
    return frozenset({*read, *READ_ELSEWHERE, *COMPOSE_ONLY})


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
