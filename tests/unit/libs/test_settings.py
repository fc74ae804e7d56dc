"""Where settings come from, and that secrets stay out of sight."""

from pathlib import Path

import pytest
from pydantic_settings import SettingsConfigDict

from libs.errors import MisconfiguredSettings
from libs.settings import LOCAL_LIMITS, PRODUCTION_LIMITS, ServiceSettings, with_files


class ExampleSettings(ServiceSettings):
    """A service's settings as a service writes them."""

    model_config = SettingsConfigDict(env_prefix="TURNWIRE_EXAMPLE__")

    places: int = 3


def read() -> ExampleSettings:
    return ExampleSettings()  # type: ignore[call-arg]  # from the environment


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TURNWIRE_EXAMPLE__DATABASE_URL", "postgresql://u:hunter2@h/turnwire")


def test_shared_names_have_no_prefix_and_own_names_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "kafka:9092")
    monkeypatch.setenv("TURNWIRE_EXAMPLE__PLACES", "7")
    monkeypatch.setenv("PLACES", "9")

    settings = read()

    assert (settings.kafka_bootstrap_servers, settings.places) == ("kafka:9092", 7)


def test_a_secret_may_be_mounted_as_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounted = tmp_path / "redis"
    mounted.write_text("redis://:from-a-file@r/0\n", encoding="utf-8")
    monkeypatch.setenv("REDIS_URL_FILE", str(mounted))

    assert read().redis_url.get_secret_value() == "redis://:from-a-file@r/0"


def test_a_plain_variable_wins_over_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounted = tmp_path / "redis"
    mounted.write_text("redis://file/0", encoding="utf-8")
    monkeypatch.setenv("REDIS_URL_FILE", str(mounted))
    monkeypatch.setenv("REDIS_URL", "redis://plain/0")

    assert read().redis_url.get_secret_value() == "redis://plain/0"


def test_a_file_that_is_not_there_is_named_without_its_content(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_URL_FILE", "/nowhere/redis")

    with pytest.raises(MisconfiguredSettings, match="REDIS_URL_FILE"):
        read()


def test_what_no_settings_class_reads_may_stand_in_a_file_as_well(tmp_path: Path) -> None:
    mounted = tmp_path / "url"
    mounted.write_text("postgresql://from-a-file\n", encoding="utf-8")
    given = {"A_FILE": str(mounted), "B_FILE": str(mounted), "B": "plain", "C_FILE": "/nowhere/c"}

    found = with_files(given, ("A", "B"))

    assert (found["A"], found["B"]) == ("postgresql://from-a-file", "plain")
    assert "C" not in found
    with pytest.raises(MisconfiguredSettings, match="C_FILE"):
        with_files(given, ("C",))


def test_no_secret_shows_in_the_representation() -> None:
    assert "hunter2" not in repr(read())
    assert "hunter2" not in str(read().model_dump())


def test_the_profile_chooses_the_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read().limits == PRODUCTION_LIMITS
    monkeypatch.setenv("TURNWIRE_EXAMPLE__PROFILE", "local")
    assert read().limits == LOCAL_LIMITS
