import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from deploy.local.errors import LocalStackError, PartFailed
from deploy.local.processes import ServiceProcess, ServiceSpec, Supervisor
from deploy.local.waiting import until, until_async

STUB = "tests.unit.deploy.stub_service"
PATIENCE_S = 30.0
"""Longest wait for what a process of ours does; the machine may be busy."""


def stub(index: int = 0, **settings: str) -> ServiceSpec:
    env = {f"TURNWIRE_STUB__{name.upper()}": value for name, value in settings.items()}
    return ServiceSpec("stub", env, index, module=STUB)


def word_of(process: ServiceProcess) -> str:
    return httpx.get(f"{process.url}/word", timeout=PATIENCE_S).text


async def crash(process: ServiceProcess) -> None:
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.TransportError):
            await client.get(f"{process.url}/crash", timeout=PATIENCE_S)


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(tmp_path / "logs")
    yield supervisor
    await supervisor.stop()


async def test_processes_are_ready_when_start_returns_and_gone_when_stop_does(
    supervisor: Supervisor,
) -> None:
    await supervisor.start([stub(0, word="one"), stub(1, word="two")])
    processes = supervisor.processes
    assert [word_of(process) for process in processes] == ["one", "two"]
    identities = [process.identity for process in processes]

    await supervisor.stop()

    assert [identity is not None and identity.is_running() for identity in identities] == [
        False,
        False,
    ]
    assert [process.exit_code() for process in processes] == [0, 0]


async def test_a_process_that_ends_early_is_named_with_the_end_of_its_log(
    supervisor: Supervisor,
) -> None:
    with pytest.raises(PartFailed, match="stub-1 ended with code 3") as failure:
        await supervisor.start([stub(0), stub(1, mode="crash")])
    assert "no model in the settings" in str(failure.value)
    assert supervisor.processes == ()


async def test_a_process_that_never_gets_ready_is_killed_at_its_bound(tmp_path: Path) -> None:
    process = ServiceProcess(stub(mode="deaf"), log_folder=tmp_path)
    process.START_BOUND_S = 1.5
    with pytest.raises(PartFailed, match="not ready"):
        await process.start()
    assert process.pid is None


async def test_a_killed_process_comes_back_on_its_port_with_new_settings(
    supervisor: Supervisor,
) -> None:
    await supervisor.start([stub(word="before")])
    process = supervisor.process("stub")
    port = process.port
    await process.kill()
    assert process.exit_code() == -9

    await process.restart(env={"TURNWIRE_STUB__WORD": "after"})

    assert (process.port, word_of(process)) == (port, "after")


async def test_a_paused_process_does_not_answer_until_it_is_resumed(
    supervisor: Supervisor,
) -> None:
    await supervisor.start([stub()])
    process = supervisor.process("stub")
    process.pause()
    assert not await process.is_ready()
    process.resume()
    assert await until_async(process.is_ready, timeout_s=PATIENCE_S)


async def test_stop_ends_a_paused_process(supervisor: Supervisor) -> None:
    await supervisor.start([stub()])
    process = supervisor.process("stub")
    process.pause()
    await supervisor.stop()
    assert process.exit_code() == 0


async def test_a_crashed_process_is_brought_back_and_told_about(tmp_path: Path) -> None:
    notes: list[str] = []
    supervisor = Supervisor(tmp_path, keep_alive=True, note=notes.append)
    try:
        await supervisor.start([stub()])
        process = supervisor.process("stub")
        first = process.pid
        await crash(process)

        async def is_back() -> bool:
            return process.pid not in {first, None} and await process.is_ready()

        assert await until_async(is_back, timeout_s=PATIENCE_S)
        assert "stub-0 ended with code 4" in notes[0]
    finally:
        await supervisor.stop()
    assert not await until(lambda: process.pid is not None, timeout_s=0.5)


async def test_a_stopped_process_is_not_brought_back(tmp_path: Path) -> None:
    notes: list[str] = []
    supervisor = Supervisor(tmp_path, keep_alive=True, note=notes.append)
    try:
        await supervisor.start([stub()])
        process = supervisor.process("stub")
        await process.stop()
        assert not await until(lambda: process.pid is not None, timeout_s=1.0)
        assert notes == []
    finally:
        await supervisor.stop()


async def test_an_unknown_process_is_an_error_that_names_the_known_ones(
    supervisor: Supervisor,
) -> None:
    await supervisor.start([stub()])
    with pytest.raises(LocalStackError, match="there are: stub-0"):
        supervisor.process("stub", 7)


async def test_a_cancelled_start_leaves_nothing_running(tmp_path: Path) -> None:
    process = ServiceProcess(stub(mode="deaf"), log_folder=tmp_path)
    start = asyncio.create_task(process.start())
    assert await until(lambda: process.pid is not None, timeout_s=PATIENCE_S)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert await until(lambda: process.pid is None, timeout_s=PATIENCE_S)
