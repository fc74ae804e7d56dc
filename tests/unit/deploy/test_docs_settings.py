"""The settings page and .env.example say what the settings classes read, all of it."""

import re
from collections.abc import Callable

import pytest
from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from deploy.docs_settings import (
    COMPOSE_ONLY,
    COMPOSE_PATH,
    ENV_EXAMPLE_PATH,
    READ_ELSEWHERE,
    ROOT,
    env_example,
    generated_files,
    settings_classes,
    settings_page,
    variables_of,
)
from libs.settings import ServiceSettings
from tests.architecture.tree import SERVICES

ASSIGNMENT = re.compile(r"^(# )?([A-Z][A-Z0-9_]*)=(.*)$", re.MULTILINE)
PLACEHOLDERS = {  # what a person writes for "change-me"
    "DATABASE_URL": "postgresql://somebody:secret@127.0.0.1:5432/turnwire",
    "LLM_BASE_URL": "http://127.0.0.1:8080/v1",
    "TURNWIRE_DOOR_MASTER_KEY": "0f" * 32,
}


class Sample(ServiceSettings):
    """A service's settings with one field of each kind."""

    model_config = SettingsConfigDict(
        env_prefix="TURNWIRE_SAMPLE__", frozen=True, extra="ignore", populate_by_name=True
    )

    llm_api_key: SecretStr = Field(
        validation_alias=AliasChoices("LLM_API_KEY", "llm_api_key"), description="Of the provider."
    )
    wait_s: float = Field(default=2.0, gt=0, le=60, description="Seconds | at most.")
    is_eager: bool = Field(default=False, description="Whether to hurry.")
    note: str | None = Field(default=None, max_length=5, description="For people.")


def assignments() -> dict[str, tuple[bool, str]]:
    """Name, whether it is commented, and value of every line of the committed example."""
    text = (ROOT / ENV_EXAMPLE_PATH).read_text(encoding="utf-8")
    found = ASSIGNMENT.findall(text)
    assert len(found) == len({name for _, name, _ in found}), "a variable stands twice"
    return {name: (bool(comment), value) for comment, name, value in found}


def test_both_files_are_current() -> None:
    for path, text in generated_files().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path} is stale"


def test_every_service_has_a_settings_class() -> None:
    assert set(SERVICES) <= settings_classes().keys()


def test_the_example_holds_every_variable_and_no_other() -> None:
    read = {v.name for settings in settings_classes().values() for v in variables_of(settings)}

    assert assignments().keys() == read | READ_ELSEWHERE.keys() | COMPOSE_ONLY.keys()


def test_what_compose_fills_in_is_in_the_example() -> None:
    text = (ROOT / COMPOSE_PATH).read_text(encoding="utf-8")
    filled = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", text))

    assert filled <= assignments().keys()
    assert COMPOSE_ONLY.keys() <= filled | {"COMPOSE_PROFILES"}  # compose reads that one itself


def test_what_has_no_default_is_not_commented_unless_compose_makes_it() -> None:
    required = {
        variable.name
        for settings in settings_classes().values()
        for variable in variables_of(settings)
        if variable.default is None
    }
    given = {name for name, (is_commented, _) in assignments().items() if not is_commented}

    made = {name for name in required if name.endswith("__DATABASE_URL")}
    assert given - COMPOSE_ONLY.keys() == required - made
    compose = (ROOT / COMPOSE_PATH).read_text(encoding="utf-8")
    assert all(f"{name}: &" in compose for name in made)
    asked = set(re.findall(r"(?<!\$)\$\{([A-Z_]+):\?", compose))  # without it nothing starts
    assert asked - given == {"LLM_BASE_URL", "LLM_MODEL"}, "say it where people are told to copy it"


@pytest.mark.parametrize("service", SERVICES)
def test_a_filled_in_example_is_accepted_and_means_the_defaults(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Callable[[], ServiceSettings] = settings_classes()[service]
    variables = variables_of(settings_classes()[service])
    example = assignments()
    for name in example:
        monkeypatch.delenv(name, raising=False)
    for variable in variables:
        if variable.default is None:
            known = [v for name, v in PLACEHOLDERS.items() if variable.name.endswith(name)]
            monkeypatch.setenv(variable.name, known[0] if known else "model-1")
    by_default = settings()
    for variable in variables:
        if variable.default:
            value = example[variable.name][1]
            is_path = "/" in value and (ROOT / value).exists()
            monkeypatch.setenv(variable.name, str(ROOT / value) if is_path else value)

    assert settings() == by_default


def test_a_variable_is_described_as_it_is_read() -> None:
    found = {variable.name: variable for variable in variables_of(Sample)}

    assert found["LLM_API_KEY"].default is None
    assert found["LLM_API_KEY"].is_secret
    assert found["TURNWIRE_SAMPLE__WAIT_S"].bounds == "> 0, ≤ 60"
    assert found["TURNWIRE_SAMPLE__WAIT_S"].default == "2"
    assert found["TURNWIRE_SAMPLE__IS_EAGER"].default == "false"
    assert found["TURNWIRE_SAMPLE__NOTE"].default == ""
    assert found["KAFKA_BOOTSTRAP_SERVERS"].default == "127.0.0.1:9092"


def test_the_page_and_the_example_show_a_setting_with_its_bounds() -> None:
    page, example = settings_page({"sample": Sample}), env_example({"sample": Sample})

    assert "| `TURNWIRE_SAMPLE__WAIT_S` | number, > 0, ≤ 60 | `2` | Seconds \\| at most. |" in page
    assert "\n# Of the provider.\nLLM_API_KEY=change-me\n" in example
    assert "\n# Seconds | at most. (> 0, ≤ 60)\n# TURNWIRE_SAMPLE__WAIT_S=2\n" in example


def test_no_field_is_left_without_a_description() -> None:
    silent = [
        variable.name
        for settings in settings_classes().values()
        for variable in variables_of(settings)
        if not variable.description
    ]
    assert silent == []
