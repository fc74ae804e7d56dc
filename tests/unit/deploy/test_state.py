import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.local.credentials import make_data_dir
from deploy.local.errors import StackAlreadyRunning
from deploy.local.identity import ProcessIdentity, boot_id
from deploy.local.state import (
    ProcessEntry,
    StackState,
    exclusive,
    read_state,
    state_path,
    stop_recorded,
    write_state,
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        yield process
        process.kill()


def state_of(process: subprocess.Popen[bytes]) -> StackState:
    identity, owner = ProcessIdentity.of(process.pid), ProcessIdentity.of(os.getpid())
    assert identity is not None
    assert owner is not None
    own = ProcessEntry("valkey", "redis://127.0.0.1:1/0", identity, "/d/valkey.log")
    given = ProcessEntry("kafka", "elsewhere:9092", None, None)
    return StackState(boot_id(), owner, "2026-01-01T00:00:00+00:00", (own, given))


def test_what_was_written_is_read_again(data_dir: Path, sleeper: subprocess.Popen[bytes]) -> None:
    make_data_dir(data_dir)
    state = state_of(sleeper)
    write_state(data_dir, state)
    assert read_state(data_dir) == state
    assert [entry.name for entry in state.running()] == ["valkey"]
    assert state.owner_is_running()


def test_nothing_of_an_earlier_boot_counts_as_running(sleeper: subprocess.Popen[bytes]) -> None:
    state = replace(state_of(sleeper), boot="another")
    assert state.running() == []
    assert not state.owner_is_running()


def test_a_process_id_that_was_given_away_does_not_count_as_running(
    sleeper: subprocess.Popen[bytes],
) -> None:
    state = state_of(sleeper)
    reused = replace(state.parts[0], identity=ProcessIdentity(sleeper.pid, 1))
    assert replace(state, parts=(reused,)).running() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"boot": 1, "owner": 2}'])
def test_a_file_that_cannot_be_read_counts_as_no_state(data_dir: Path, text: str) -> None:
    make_data_dir(data_dir)
    state_path(data_dir).write_text(text)
    assert read_state(data_dir) is None


async def test_stop_ends_what_the_owner_left_behind(
    data_dir: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    make_data_dir(data_dir)
    write_state(data_dir, replace(state_of(sleeper), owner=ProcessIdentity(1, 1)))
    assert [entry.name for entry in await stop_recorded(data_dir)] == ["valkey"]
    assert sleeper.wait(timeout=30) != 0


async def test_stop_of_an_unused_folder_does_nothing(data_dir: Path) -> None:
    make_data_dir(data_dir)
    assert await stop_recorded(data_dir) == []


def test_a_second_stack_on_a_folder_is_told_who_has_it(data_dir: Path) -> None:
    make_data_dir(data_dir)
    with (
        exclusive(data_dir),
        pytest.raises(StackAlreadyRunning, match=rf"\(process {os.getpid()}\).*turnwire down"),
        exclusive(data_dir),
    ):
        pytest.fail("the folder was given out twice")
    with exclusive(data_dir):
        pass
