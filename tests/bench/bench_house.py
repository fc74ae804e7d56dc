"""The house of the benchmark: the scripted provider is a process of its own."""

import asyncio
import os
import sys
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from uuid import UUID

import aiohttp

from deploy.local.part import Server
from deploy.local.processes import ServiceSpec, Supervisor
from deploy.local.stack import PartName
from tests.rig.house import WORKERS, House
from tests.rig.ledger import Ledger

START_BOUND_S = 20.0
END_BOUND_S = 5.0
RECORDED = 64  # requests the provider keeps: enough for the profile of single turns

SERVICES = ("frontend_gateway", *WORKERS)
STORES = ("postgres", "kafka", "valkey")


class ProviderProcess:
    """A provider as a process of its own; the scripted one unless another module is named."""

    def __init__(
        self, module: str = "tests.rig.provider", *arguments: str, python: str = sys.executable
    ) -> None:
        self._command = (python, "-m", module, *arguments)
        self._process: asyncio.subprocess.Process | None = None
        self.base_url = ""

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_BOUND_S):
            self.base_url = (await self._process.stdout.readline()).decode().strip()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            async with asyncio.timeout(END_BOUND_S):
                await self._process.wait()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    async def control(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Use the control interface of ``tests/rig/provider.py``."""
        root = self.base_url.removesuffix("/v1")
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, root + path, json=body) as response,
        ):
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer


class BenchHouse(House):
    """One process of each service, at the log level of production."""

    provider: ProviderProcess  # type: ignore[assignment]

    def __init__(self, data_dir: Path, *, profiled: str = "") -> None:
        super().__init__(data_dir)
        # A service that gives up, as one does that a restart helps, is started again as by `up`.
        self.supervisor = Supervisor(data_dir / "services", keep_alive=True)
        self.provider = ProviderProcess("tests.rig.provider", "--record", str(RECORDED))
        self._profiled = profiled

    def spec(self, name: str, index: int = 0) -> ServiceSpec:
        """The plain process, or one that writes a CPU profile when it ends."""
        if self._profiled not in (name, "all"):
            return super().spec(name, index)
        env = {
            **self.environment(name, index),
            "TURNWIRE_BENCH_PROFILED": f"services.{name}",
            "TURNWIRE_BENCH_PROFILE_PATH": f"{Path.cwd()}/{name}.profile",
        }
        return ServiceSpec(name, env, index, module="tests.bench.profiled")

    async def restart_llm(self, base_url: str = "", *, calls_at_once: int = 0) -> None:
        """Point llm_gateway to another provider, or back to the scripted one."""
        env = dict(self.spec("llm_gateway").env)
        if base_url:
            env["LLM_BASE_URL"] = base_url
        if calls_at_once:
            env["TURNWIRE_LLM_GATEWAY__MAX_RUNNING"] = str(calls_at_once)
        await self.process("llm_gateway").restart(env=env)

    def pids(self) -> dict[str, int]:
        """Every process that takes part, by the name the page uses."""
        named = {name: self.process(name).pid for name in SERVICES}
        named |= {name: self.server(name).pid for name in STORES}
        named |= {"provider": self.provider.pid, "driver": os.getpid()}
        return {name: pid for name, pid in named.items() if pid is not None}

    def server(self, name: str) -> Server:
        """A service's or a store's process."""
        if name in SERVICES:
            return self.process(name)
        return self.stack.servers[cast("PartName", name)]

    async def ledger(self) -> tuple[str, Ledger]:
        """A key, and the ledger of its tenant, which the final check compares with the rows."""
        client = await self.client("bench")
        return self._keys["bench", "tester"].key, client.ledger

    async def turn_moments(self, turn_id: UUID) -> dict[str, datetime]:
        """Clock times of one turn's transactions, from its rows."""
        [row] = await self.rows(
            "select t.created_at as accepted, p.created_at as planned, t.ended_at as ended, "
            "(select a.ended_at from llm_gateway.attempts a where a.turn_id = t.id) as answered "
            "from ingestion.turns t join context_assembly.plans p on p.turn_id = t.id "
            "where t.id = %s",
            turn_id,
        )
        return row
