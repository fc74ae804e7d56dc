from pathlib import Path

import pytest

from deploy.local.credentials import (
    SERVICES,
    credentials_path,
    load_or_make,
    make_data_dir,
    save,
)
from deploy.local.errors import LocalStackError


def test_the_file_and_its_folder_are_private(data_dir: Path) -> None:
    make_data_dir(data_dir)
    load_or_make(data_dir)
    assert data_dir.stat().st_mode & 0o777 == 0o700
    assert credentials_path(data_dir).stat().st_mode & 0o777 == 0o600


def test_a_second_start_finds_the_same_secrets_and_ports(data_dir: Path) -> None:
    make_data_dir(data_dir)
    made = load_or_make(data_dir).with_port("kafka", 20_001)
    save(data_dir, made)
    assert load_or_make(data_dir) == made


def test_no_two_secrets_are_equal(data_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    found = []
    for folder in (data_dir, other):
        make_data_dir(folder)
        made = load_or_make(folder)
        found += [made.postgres_password, made.redis_password, made.model_api_key]
        found += [made.door_master_key, *made.service_passwords.values()]
    assert len(set(found)) == len(found) == 2 * (4 + len(SERVICES))


def test_the_door_key_is_32_bytes(data_dir: Path) -> None:
    make_data_dir(data_dir)
    assert len(bytes.fromhex(load_or_make(data_dir).door_master_key)) == 32


def test_secrets_are_not_part_of_the_text_of_credentials(data_dir: Path) -> None:
    make_data_dir(data_dir)
    made = load_or_make(data_dir)
    assert made.postgres_password not in repr(made)
    assert made.door_master_key not in repr(made)


def test_a_damaged_file_is_refused_without_quoting_it(data_dir: Path) -> None:
    make_data_dir(data_dir)
    credentials_path(data_dir).write_text('{"postgres_password": "hush"}')
    with pytest.raises(LocalStackError, match="Put the file back") as refusal:
        load_or_make(data_dir)
    assert "hush" not in str(refusal.value)


def test_a_folder_with_other_things_in_it_is_left_alone(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o755)
    (data_dir / "thesis.tex").write_text("")
    with pytest.raises(LocalStackError, match="left alone"):
        make_data_dir(data_dir)
    assert data_dir.stat().st_mode & 0o777 == 0o755
