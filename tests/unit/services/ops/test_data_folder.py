"""Other commands find a local stack by its folder, and the environment wins over it."""

import stat
from pathlib import Path

import pytest

from deploy.local.credentials import load_or_make, make_data_dir, save
from services.ops.data_folder import DataFolder
from services.ops.failures import CommandFailed, ExitCode
from services.ops.service_environment import role_passwords


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    path = tmp_path / "data"
    make_data_dir(path)
    credentials = load_or_make(path)
    for name, port in (("postgres", 1), ("kafka", 2), ("valkey", 3), ("model", 4)):
        credentials = credentials.with_port(name, port)
    save(path, credentials)
    return DataFolder(path)


def test_a_folder_tells_how_to_reach_its_stack(folder: DataFolder) -> None:
    found = folder.environment({})
    assert found["KAFKA_BOOTSTRAP_SERVERS"] == "127.0.0.1:2"
    assert found["REDIS_URL"].endswith("@127.0.0.1:3/0")
    assert found["LLM_BASE_URL"] == "http://127.0.0.1:4/v1"
    assert found["DATABASE_URL"].endswith("@127.0.0.1:1/turnwire")
    assert role_passwords(found) == {
        f"turnwire_{name}": password
        for name, password in folder.credentials.service_passwords.items()
    }


def test_what_the_environment_names_wins(folder: DataFolder) -> None:
    found = folder.environment({"REDIS_URL": "redis://elsewhere", "KAFKA_BOOTSTRAP_SERVERS": ""})
    assert found["REDIS_URL"] == "redis://elsewhere"
    assert found["KAFKA_BOOTSTRAP_SERVERS"] == "127.0.0.1:2"


def test_roles_are_looked_for_where_the_given_database_is(folder: DataFolder) -> None:
    given = "postgresql://admin:secret@db.example:5432/chat"
    found = folder.environment({"DATABASE_URL": given})
    password = folder.credentials.service_passwords["ops"]
    expected = f"postgresql://turnwire_ops:{password}@db.example:5432/chat"
    assert found["TURNWIRE_OPS__DATABASE_URL"] == expected
    assert found["DATABASE_URL"] == given


def test_a_folder_without_a_stack_tells_nothing_and_makes_nothing(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "none")
    assert folder.environment({}) == {}
    assert folder.api_key is None
    with pytest.raises(CommandFailed, match="turnwire up") as failed:
        _ = folder.credentials
    assert failed.value.exit_code is ExitCode.NOT_READY
    assert not folder.path.exists()


def test_a_kept_key_is_for_its_owner_alone(folder: DataFolder) -> None:
    folder.keep_key("tw_abc")
    folder.keep_url("http://127.0.0.1:8080")
    assert folder.api_key == "tw_abc"
    assert folder.url == "http://127.0.0.1:8080"
    assert stat.S_IMODE(folder.key_path.stat().st_mode) == 0o600
