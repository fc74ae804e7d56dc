"""Writes ``docs/settings.md`` and ``.env.example`` from the settings classes of the services.

``python -m deploy.docs_settings`` writes them, with ``--check`` it only says what is stale.
"""

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import AliasChoices, SecretStr
from pydantic.fields import FieldInfo

from deploy.generated import ROOT, write_or_check
from libs.settings import FILE_SUFFIX, ServiceSettings

SERVICES = ("frontend_gateway", "ingestion", "context_assembly", "llm_gateway", "ops")
SETTINGS_PAGE_PATH = "docs/settings.md"
ENV_EXAMPLE_PATH = ".env.example"
COMPOSE_PATH = "docker-compose.yml"

_ANY_SERVICE = "TURNWIRE_<SERVICE>__"
_ORDER = ("DATABASE_URL", "KAFKA_", "REDIS_", "LLM_", "OTEL_", "TURNWIRE_")

# Read by the command line and by libraries rather than by a settings class.
READ_ELSEWHERE: Mapping[str, str] = {
    "DATABASE_URL": "For `turnwire migrate` alone: an account that may create schemas and roles.",
    "TURNWIRE_DATA_DIR": "Where `turnwire up` keeps its data; unset is `.turnwire` here.",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "Where traces are sent, OTLP over HTTP; unset sends none.",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "The same, with its whole path; wins over the other.",
    "OTEL_EXPORTER_OTLP_HEADERS": "Sent with traces, name=value separated by commas; secret.",
    "OTEL_SEMCONV_STABILITY_OPT_IN": (
        "Names in traces, of gen_ai_latest_experimental, gen_ai_v1_36, openinference, langfuse."
    ),
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": (
        "SPAN_ONLY writes prompts and answers into traces; unset writes no text anywhere."
    ),
    "OTEL_RESOURCE_ATTRIBUTES": "Told of every process in traces, name=value, by commas.",
    "OTEL_SERVICE_NAME": "Name of the process in traces; unset is the service's own.",
}

# Only docker-compose.yml reads these: what it starts, and passwords that it builds URLs from.
COMPOSE_ONLY: Mapping[str, str] = {
    "COMPOSE_PROFILES": "What is started, of core, obs, tools, separated by commas.",
    "POSTGRES_PASSWORD": "Of the database's administrator; used by `migrate` alone.",
    "VALKEY_PASSWORD": "Of the Valkey that holds the live streams.",
    "FRONTEND_GATEWAY_DATABASE_PASSWORD": "Of the role turnwire_frontend_gateway.",
    "INGESTION_DATABASE_PASSWORD": "Of the role turnwire_ingestion.",
    "CONTEXT_ASSEMBLY_DATABASE_PASSWORD": "Of the role turnwire_context_assembly.",
    "LLM_GATEWAY_DATABASE_PASSWORD": "Of the role turnwire_llm_gateway.",
    "OPS_DATABASE_PASSWORD": "Of the role turnwire_ops.",
    "GRAFANA_PASSWORD": "Of Grafana's user admin; profile obs alone.",
    "TURNWIRE_PORT": "Port on 127.0.0.1 of the chat page and the API; 8000 if unset.",
}

# What docker-compose.yml makes itself, so that .env need not hold it.
_MADE_BY_COMPOSE = "__DATABASE_URL"

# Of those, what a newcomer need not fill in.
COMPOSE_DEFAULTS: Mapping[str, str] = {"COMPOSE_PROFILES": "core", "TURNWIRE_PORT": "8000"}


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable, as a person has to know it.

    Attributes:
        default: As it would be written in the environment; None where it has to be given.
        bounds: What a value must satisfy beside its type; empty if nothing.
    """

    name: str
    kind: str
    default: str | None
    bounds: str
    description: str
    is_secret: bool


def settings_classes() -> dict[str, type[ServiceSettings]]:
    """The settings class of every service that has one, in the order of the path of a turn."""
    found: dict[str, type[ServiceSettings]] = {}
    for service in SERVICES:
        module = f"services.{service}.settings"
        if importlib.util.find_spec(module) is not None:
            found[service] = _settings_of(importlib.import_module(module))
    return found


def _settings_of(module: ModuleType) -> type[ServiceSettings]:
    """The one settings class that a module defines."""
    defined = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, ServiceSettings)
        and value.__module__ == module.__name__
    ]
    if len(defined) != 1:
        msg = f"{module.__name__} defines {len(defined)} settings classes; it must be one"
        raise TypeError(msg)
    return defined[0]


def variables_of(settings: type[ServiceSettings]) -> list[Variable]:
    """The variables that a settings class reads, in the order of its fields."""
    prefix = settings.model_config.get("env_prefix", "")
    return [_variable(name, field, prefix) for name, field in settings.model_fields.items()]


def settings_page(classes: Mapping[str, type[ServiceSettings]]) -> str:
    """Text of ``docs/settings.md``."""
    page = [_PAGE_HEAD, "## Everywhere\n", *_table(_shared(classes))]
    page += ["\n## Every service, with its own prefix\n", *_table(_common(classes))]
    page.append(
        "\n`<SERVICE>` is the folder's name in capitals: "
        + ", ".join(f"`{service.upper()}`" for service in classes)
        + ".\n"
    )
    for service in classes:
        own = _own(service, classes)
        page.append(f"\n## {service}\n")
        page += _table(own) if own else ["\nNothing of its own.\n"]
    page.append("\n## Read elsewhere\n\n| variable | meaning |\n|---|---|\n")
    page += [f"| `{name}` | {text} |\n" for name, text in READ_ELSEWHERE.items()]
    page.append("\n## docker-compose.yml alone\n\n| variable | meaning |\n|---|---|\n")
    page += [f"| `{name}` | {text} |\n" for name, text in COMPOSE_ONLY.items()]
    return "".join(page)


def env_example(classes: Mapping[str, type[ServiceSettings]]) -> str:
    """Text of ``.env.example``: every variable once, what has a default as a comment."""
    lines = [_ENV_HEAD]
    lines += ["\n# --- docker-compose.yml alone; letters and digits, as passwords go into URLs\n"]
    lines += [
        f"\n# {text}\n{'# ' if 'if unset' in text else ''}{name}="
        f"{COMPOSE_DEFAULTS.get(name, 'change-me')}\n"
        for name, text in COMPOSE_ONLY.items()
    ]
    lines += ["\n# --- Everywhere\n", *_env_lines(_shared(classes))]
    lines += [f"\n# {text}\n# {name}=\n" for name, text in READ_ELSEWHERE.items()]
    for service, settings in classes.items():
        lines += [f"\n# --- {service}\n", *_env_lines(_prefixed(settings))]
    return "".join(lines)


def generated_files() -> dict[str, str]:
    """Text of both files, by path below the root."""
    classes = settings_classes()
    return {SETTINGS_PAGE_PATH: settings_page(classes), ENV_EXAMPLE_PATH: env_example(classes)}


def main(arguments: Sequence[str]) -> int:
    """Write or check; returns the exit code."""
    return write_or_check(generated_files(), arguments, command="deploy.docs_settings")


def _variable(name: str, field: FieldInfo, prefix: str) -> Variable:
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        env_name = str(alias.choices[0])
    else:
        env_name = alias if isinstance(alias, str) else f"{prefix}{name.upper()}"
    return Variable(
        name=env_name,
        kind=_kind(field.annotation),
        default=None if field.is_required() else _written(field.get_default()),
        bounds=", ".join(_bound(bound) for bound in field.metadata if _bound(bound)),
        description=(field.description or "").strip(),
        is_secret=SecretStr in (field.annotation, *get_args(field.annotation)),
    )


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(annotation))
    if type(None) in get_args(annotation):
        inner = tuple(part for part in get_args(annotation) if part is not type(None))
        return _kind(inner[0] if len(inner) == 1 else Union[inner])  # noqa: UP007 -- made from a tuple
    if get_origin(annotation) in (tuple, list):
        return "JSON list"
    known = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    known |= {SecretStr: "secret", Path: "path"}
    return known.get(annotation, str(getattr(annotation, "__name__", annotation)))


def _written(value: Any) -> str:
    """A default as it would stand in the environment."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, bool | tuple | list):
        return json.dumps(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, Path) and value.is_relative_to(ROOT):
        value = value.relative_to(ROOT).as_posix()
    return "" if value is None else str(value)


def _bound(metadata: Any) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    for attribute, sign in signs.items():
        if hasattr(metadata, attribute):
            return f"{sign} {getattr(metadata, attribute)}"
    if getattr(metadata, "min_length", 0) == 1:
        return "not empty"
    for attribute, words in {"min_length": "at least", "max_length": "at most"}.items():
        if hasattr(metadata, attribute):
            return f"{words} {getattr(metadata, attribute)} characters"
    return ""


def _prefixed(settings: type[ServiceSettings]) -> list[Variable]:
    prefix = settings.model_config.get("env_prefix", "")
    return [variable for variable in variables_of(settings) if variable.name.startswith(prefix)]


def _shared(classes: Mapping[str, type[ServiceSettings]]) -> list[Variable]:
    """Variables without any service's prefix, each once; required if anybody requires it."""
    found: dict[str, Variable] = {}
    prefixes = tuple(each.model_config.get("env_prefix", "") for each in classes.values())
    for settings in classes.values():
        for variable in variables_of(settings):
            if variable.name.startswith(prefixes):
                continue
            if variable.name not in found or variable.default is None:
                found[variable.name] = variable
    return sorted(found.values(), key=lambda variable: (_rank(variable.name), variable.name))


def _rank(name: str) -> int:
    return next((rank for rank, start in enumerate(_ORDER) if name.startswith(start)), len(_ORDER))


def _common(classes: Mapping[str, type[ServiceSettings]]) -> list[Variable]:
    """What the base class gives to every service, under a placeholder's name."""
    some = next(iter(classes.values()))
    prefix = some.model_config.get("env_prefix", "")
    return [
        replace(_variable(name, field, _ANY_SERVICE), name=f"{_ANY_SERVICE}{name.upper()}")
        for name, field in ServiceSettings.model_fields.items()
        if _variable(name, some.model_fields[name], prefix).name.startswith(prefix)
    ]


def _own(service: str, classes: Mapping[str, type[ServiceSettings]]) -> list[Variable]:
    """What a service adds to the base class or changes in it."""
    settings = classes[service]
    prefix = settings.model_config.get("env_prefix", "")
    common = {v.name.replace(_ANY_SERVICE, prefix): v for v in _common(classes)}
    return [
        variable
        for variable in _prefixed(settings)
        if variable.name not in common
        or common[variable.name].default != variable.default
        or common[variable.name].bounds != variable.bounds
    ]


def _table(variables: Iterable[Variable]) -> list[str]:
    rows = ["\n| variable | kind | default | meaning |\n|---|---|---|---|\n"]
    for variable in variables:
        default = {None: "required", "": "unset"}.get(variable.default, f"`{variable.default}`")
        kind = f"{variable.kind}, {variable.bounds}" if variable.bounds else variable.kind
        meaning = re.sub(r"\s+", " ", variable.description).replace("|", "\\|")
        rows.append(f"| `{variable.name}` | {kind} | {default} | {meaning} |\n")
    return rows


def _env_lines(variables: Iterable[Variable]) -> list[str]:
    lines = []
    for variable in variables:
        text = re.sub(r"\s+", " ", variable.description) or variable.kind
        bounds = f" ({variable.bounds})" if variable.bounds else ""
        is_made = variable.name.endswith(_MADE_BY_COMPOSE)
        given = variable.default is None and not is_made
        value = "change-me" if variable.default is None else variable.default
        lines.append(f"\n# {text}{bounds}\n{'' if given else '# '}{variable.name}={value}\n")
    return lines


_PAGE_HEAD = f"""\
# Settings

<!-- Generated by `python -m deploy.docs_settings` from the settings classes; change them there. -->

Every setting is an environment variable. A service reads them once, when it starts, and refuses
to start when one is missing or out of bounds. `turnwire config show` prints what is in force with
secrets masked, `turnwire config check` says what is wrong.

Any variable may be given as `<NAME>{FILE_SUFFIX}`, the path of a file that holds the value; the
plain variable wins. Of those under *Read elsewhere* that holds for `DATABASE_URL` and
`OTEL_EXPORTER_OTLP_HEADERS`. Seconds end in `_S`, milliseconds in `_MS`, bytes in `_BYTES`.

"""

_ENV_HEAD = f"""\
# Generated by `python -m deploy.docs_settings`. Copy to .env and fill in what is not commented.
# A commented line shows the default. A process takes any variable as <NAME>{FILE_SUFFIX} too, the
# path of a file that holds the value. The local stack (`turnwire up`) needs none of this.
#
# docker-compose.yml says itself where its own parts are and on which ports they listen; it makes
# each DATABASE_URL from a password below. All else reaches the services as it stands here.
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
