"""The local stack as a whole: its data folder, its ports, and that nothing outlives it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from deploy.local.errors import LocalStackError, PartFailed, StackAlreadyRunning
from deploy.local.ports import is_free, pick_port
from deploy.local.stack import LocalStack, PartName, PartProgress, environment
from deploy.local.state import read_state, state_path, stop_recorded
from deploy.local.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.redis]

LIGHT: Sequence[PartName] = ("postgres", "valkey")
GIVEN = {"KAFKA_BOOTSTRAP_SERVERS": "elsewhere:9092", "LLM_BASE_URL": "http://user:hush@llm/v1"}
ROOT = Path(__file__).parents[2]


def light(data_dir: Path, notes: list[PartProgress] | None = None) -> LocalStack:
    return LocalStack(
        data_dir, parts=LIGHT, progress=notes.append if notes is not None else lambda _: None
    )


async def test_two_stacks_run_side_by_side_and_leave_nothing_running(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    async with light(folders[0]) as one, light(folders[1]) as two:
        assert one.database_url != two.database_url
        states = [read_state(folder) for folder in folders]
        running = [state.running() for state in states if state is not None]
        assert [[entry.name for entry in entries] for entries in running] == [list(LIGHT)] * 2
    for state in states:
        assert state is not None
        assert state.running() == []
    assert not any(state_path(folder).exists() for folder in folders)


async def test_a_later_start_has_the_same_urls_and_data(data_dir: Path) -> None:
    async with light(data_dir) as stack:
        first = environment_of(stack)
        async with await psycopg.AsyncConnection.connect(stack.database_url) as connection:
            await connection.execute("CREATE TABLE kept ()")
    async with light(data_dir) as stack:
        assert environment_of(stack) == first
        async with await psycopg.AsyncConnection.connect(stack.database_url) as connection:
            await connection.execute("SELECT FROM kept")


async def test_a_part_whose_port_was_taken_moves_and_says_so(data_dir: Path) -> None:
    async with light(data_dir) as stack:
        port = stack.valkey.port
    notes: list[PartProgress] = []
    async with (
        await asyncio.start_server(lambda *_: None, "127.0.0.1", port),
        light(data_dir, notes) as stack,
    ):
        assert stack.valkey.port != port
    told = [note.detail for note in notes if note.state == "note"]
    assert len(told) == 1
    assert f"port {port} is taken by" in told[0]


async def test_a_second_stack_on_a_folder_is_refused_and_the_first_goes_on(
    data_dir: Path,
) -> None:
    async with light(data_dir) as stack:
        with pytest.raises(StackAlreadyRunning):
            await light(data_dir).start()
        async with await psycopg.AsyncConnection.connect(stack.database_url):
            pass


async def test_given_parts_are_not_started_and_their_secrets_not_shown(data_dir: Path) -> None:
    notes: list[PartProgress] = []
    async with LocalStack(data_dir, external=GIVEN, progress=notes.append) as stack:
        assert sorted(stack.servers) == ["postgres", "valkey"]
        assert stack.kafka_bootstrap_servers == "elsewhere:9092"
        with pytest.raises(LocalStackError, match="KAFKA_BOOTSTRAP_SERVERS"):
            _ = stack.kafka
        text = state_path(data_dir).read_text()
        variables = environment(stack)
    assert "hush" not in text
    assert stack.credentials.postgres_password not in text
    assert variables["LLM_BASE_URL"] == GIVEN["LLM_BASE_URL"]
    given = {note.name: note.detail for note in notes if note.state == "given"}
    assert given == {"kafka": "elsewhere:9092", "model": "http://llm/v1"}


async def test_each_service_gets_a_url_with_its_own_role_and_password(data_dir: Path) -> None:
    async with LocalStack(data_dir, external=GIVEN) as stack:
        variables = environment(stack)
        passwords = stack.role_passwords
    for service in ("frontend_gateway", "ingestion", "context_assembly", "llm_gateway", "ops"):
        role = f"turnwire_{service}"
        url = variables[f"TURNWIRE_{service.upper()}__DATABASE_URL"]
        assert url.startswith(f"postgresql://{role}:{passwords[role]}@127.0.0.1:")
        assert url.endswith("/turnwire")


async def test_a_part_that_fails_stops_the_others(data_dir: Path) -> None:
    async with light(data_dir):
        pass
    (data_dir / "postgres" / "data" / "postgresql.conf").write_text("no such setting\n")
    stack = light(data_dir)
    with pytest.raises(PartFailed, match=r"(?s)postgres ended with code 1 .*syntax error in file"):
        await stack.start()
    assert is_free(stack.credentials.ports["valkey"])
    assert stack.servers == {}
    assert read_state(data_dir) is None


OWNER = """
import asyncio, sys
from pathlib import Path
from deploy.local.stack import LocalStack

async def main():
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(15, ended.set)
    async with LocalStack(Path(sys.argv[1]), parts=("postgres", "valkey")):
        print("up", flush=True)
        await ended.wait()

asyncio.run(main())
"""


def start_owner(data_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, data_dir],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )


async def test_nothing_outlives_an_owner_that_was_killed(data_dir: Path) -> None:
    with start_owner(data_dir) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        state = read_state(data_dir)
        assert state is not None
        assert len(state.running()) == len(LIGHT)
        owner.send_signal(signal.SIGKILL)
    assert await until(lambda: state.running() == [], timeout_s=30)
    assert not state.owner_is_running()

    async with light(data_dir) as stack:  # what it left in the folder is no hindrance
        assert json.loads(state_path(data_dir).read_text())["owner"]["pid"] == os.getpid()
        assert stack.postgres.pid


async def test_down_stops_the_stack_of_another_process(data_dir: Path) -> None:
    with start_owner(data_dir) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        state = read_state(data_dir)
        stopping = asyncio.create_task(stop_recorded(data_dir))
        assert await until(lambda: owner.poll() is not None, timeout_s=20)
        stopped = await stopping
    assert [entry.name for entry in stopped] == list(LIGHT)
    assert owner.returncode == 0
    assert state is not None
    assert state.running() == []


def environment_of(stack: LocalStack) -> list[str]:
    return [stack.database_url, stack.redis_url, stack.door_master_key]


async def test_picked_ports_of_one_stack_differ(data_dir: Path) -> None:
    async with light(data_dir) as stack:
        ports = stack.credentials.ports
    assert sorted(ports) == ["postgres", "valkey"]
    assert len({*ports.values(), pick_port(avoid=ports.values())}) == 3
