"""A data folder serves one Turnwire at a time; what runs in it is told by its files."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deploy.local.credentials import load_or_make, make_data_dir
from deploy.local.errors import StackAlreadyRunning
from deploy.local.identity import ProcessIdentity, boot_id
from deploy.local.state import ProcessEntry, StackState, exclusive, write_state
from services.ops.data_folder import DataFolder
from services.ops.failures import ExitCode, exit_code_of
from services.ops.running import check_unused
from services.ops.screen import Screen
from services.ops.status import status_lines, status_of


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    make_data_dir(tmp_path / "data")
    load_or_make(tmp_path / "data")
    return DataFolder(tmp_path / "data")


def test_a_second_start_in_a_folder_is_refused(folder: DataFolder) -> None:
    check_unused(folder)
    with exclusive(folder.path):
        with pytest.raises(StackAlreadyRunning, match="turnwire down --data-dir") as refused:
            check_unused(folder)
        assert exit_code_of(refused.value) is ExitCode.CONFLICT
    check_unused(folder)


async def test_the_status_tells_what_runs_what_ended_and_what_was_given(
    folder: DataFolder, taken_port: int
) -> None:
    me = ProcessIdentity.of(os.getpid())
    assert me is not None
    gone = ProcessIdentity(me.pid, me.started_ticks - 1)
    here = f"127.0.0.1:{taken_port}"
    state = StackState(
        boot=boot_id(),
        owner=me,
        started_at=datetime.now(UTC).isoformat(),
        parts=(
            ProcessEntry("kafka", here, me, "/logs/kafka.log"),
            ProcessEntry("valkey", here, gone, "/logs/valkey.log"),
            ProcessEntry("model", "https://llm.example/v1", None, None),
        ),
    )
    write_state(folder.path, state)
    folder.keep_url("http://127.0.0.1:8080")

    found = await status_of(folder)

    assert [(p.name, p.health, p.port) for p in found.parts] == [
        ("kafka", "ready", taken_port),
        ("valkey", "ended", taken_port),
        ("model", "given", None),
    ]
    assert not found.is_ready
    assert found.parts[0].uptime_s is not None
    assert found.parts[1].pid is None
    lines = status_lines(Screen(), found)
    assert lines[0] == "2 of 3 parts and services are ready at http://127.0.0.1:8080/ui/"
    assert any("/logs/kafka.log" in line for line in lines)
