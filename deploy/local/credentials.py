"""The secrets and ports of one data folder: made at the first start, the same ever after."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from deploy.local.errors import LocalStackError
from deploy.local.private_files import write_private

# The folder's name of every service that has a database role, and the operator's command line.
SERVICES = ("frontend_gateway", "ingestion", "context_assembly", "llm_gateway", "ops")
LOCK_NAME = "lock"  # of the data folder; made before the file is
PASSWORD_BYTES = 24  # 192 random bits
DOOR_MASTER_KEY_BYTES = 32  # the output size of SHA-256, which the door's signatures use


@dataclass(frozen=True, slots=True)
class Credentials:
    """What ``secrets.json`` holds. Never printed: the secrets are left out of its text.

    Attributes:
        door_master_key: Hexadecimal, 32 bytes.
        service_passwords: By service, for the database role ``turnwire_<service>``.
        ports: By part, as chosen at the first start or moved since.
    """

    postgres_password: str = field(repr=False)
    redis_password: str = field(repr=False)
    model_api_key: str = field(repr=False)
    door_master_key: str = field(repr=False)
    service_passwords: Mapping[str, str] = field(repr=False)
    ports: Mapping[str, int]

    def with_port(self, name: str, port: int) -> "Credentials":
        """The same, but one part's port is another one."""
        return replace(self, ports={**self.ports, name: port})


def credentials_path(data_dir: Path) -> Path:
    """The file, mode 0600."""
    return data_dir / "secrets.json"


def make_data_dir(data_dir: Path) -> None:
    """Make the folder, or see that it is one of ours or empty; its mode becomes 0700.

    Raises:
        LocalStackError: If it holds something else; its mode is then left alone.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    names = {entry.name for entry in data_dir.iterdir()}
    if credentials_path(data_dir).name not in names and names - {LOCK_NAME}:
        raise LocalStackError(
            f"{data_dir} is no data folder of Turnwire and not empty, so it is left alone. Choose "
            "another --data-dir."
        )
    data_dir.chmod(0o700)


def load_or_make(data_dir: Path) -> Credentials:
    """Read a data folder's credentials; make the file (mode 0600) if it is missing.

    Raises:
        LocalStackError: If the file is there and cannot be used.
    """
    path = credentials_path(data_dir)
    if path.exists():
        return _read(path)
    made = Credentials(
        postgres_password=secrets.token_urlsafe(PASSWORD_BYTES),
        redis_password=secrets.token_urlsafe(PASSWORD_BYTES),
        model_api_key=secrets.token_urlsafe(PASSWORD_BYTES),
        door_master_key=secrets.token_hex(DOOR_MASTER_KEY_BYTES),
        service_passwords={name: secrets.token_urlsafe(PASSWORD_BYTES) for name in SERVICES},
        ports={},
    )
    save(data_dir, made)
    return made


def save(data_dir: Path, credentials: Credentials) -> None:
    """Write the file, whole or not at all."""
    write_private(credentials_path(data_dir), json.dumps(asdict(credentials), indent=2) + "\n")


def _read(path: Path) -> Credentials:
    path.chmod(0o600)
    try:
        return Credentials(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        # The error's text could quote the file, so only its kind is told.
        raise LocalStackError(
            f"{path} cannot be read as the secrets of a local stack ({type(error).__name__}). Put "
            "the file back from a copy, or use a new data folder: without the old passwords the "
            "data in this one cannot be opened."
        ) from None
