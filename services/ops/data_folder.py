"""What a local stack keeps in its data folder, as the other commands need it."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from deploy.local.credentials import SERVICES, Credentials, credentials_path, load_or_make
from deploy.local.model import MODEL
from deploy.local.private_files import write_private
from deploy.local.stack import DATABASE, with_login
from deploy.local.state import StackState, read_state
from services.ops.failures import CommandFailed, ExitCode

URL_NAME = "url"  # where the gateway answers; written by every start
KEY_NAME = "api-key"  # made at the first start


class DataFolder:
    """One data folder, whether its stack runs or not."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def exists(self) -> bool:
        """Whether a stack was ever started here."""
        return credentials_path(self.path).is_file()

    @property
    def key_path(self) -> Path:
        """The file of the API key that was made at the first start, mode 0600."""
        return self.path / KEY_NAME

    @property
    def url(self) -> str | None:
        """Where the gateway answered when the stack was last started."""
        return _text_of(self.path / URL_NAME)

    @property
    def api_key(self) -> str | None:
        """The API key of the first start."""
        return _text_of(self.key_path)

    def keep_url(self, url: str) -> None:
        """Note where the gateway answers."""
        (self.path / URL_NAME).write_text(f"{url}\n", encoding="utf-8")

    def keep_key(self, key: str) -> None:
        """Keep an API key, readable for the owner alone."""
        write_private(self.key_path, f"{key}\n")

    @property
    def credentials(self) -> Credentials:
        """The folder's secrets and ports.

        Raises:
            CommandFailed: No stack was ever started here.
        """
        if not self.exists:
            msg = (
                f"{self.path} holds no local stack, so there is nothing to act on. Start one with "
                f"`turnwire up --data-dir {self.path}`, or name the one you mean with --data-dir."
            )
            raise CommandFailed(msg, exit_code=ExitCode.NOT_READY)
        return load_or_make(self.path)

    @property
    def state(self) -> StackState | None:
        """What was last written about its processes."""
        return read_state(self.path)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables that reach this folder's stack; those given in ``environ`` win.

        Empty where no stack was ever started here.
        """
        if not self.exists:
            return {}
        own = _variables(self.credentials, environ)
        return {name: environ.get(name) or value for name, value in own.items()}


def _variables(credentials: Credentials, environ: Mapping[str, str]) -> dict[str, str]:
    """The same names as a started stack's ``environment``, from what is written down."""
    ports = credentials.ports
    found: dict[str, str] = {"TURNWIRE_DOOR_MASTER_KEY": credentials.door_master_key}
    # The roles' passwords are the folder's, wherever the database is.
    if admin_url := environ.get("DATABASE_URL") or _own_database_url(credentials):
        found["DATABASE_URL"] = admin_url
        for service in SERVICES:
            password = credentials.service_passwords[service]
            own = with_login(admin_url, f"turnwire_{service}", password)
            found[f"TURNWIRE_{service.upper()}__DATABASE_URL"] = own
    if port := ports.get("kafka"):
        found["KAFKA_BOOTSTRAP_SERVERS"] = f"127.0.0.1:{port}"
    if port := ports.get("valkey"):
        password = quote(credentials.redis_password, safe="")
        found["REDIS_URL"] = f"redis://:{password}@127.0.0.1:{port}/0"
    if port := ports.get("model"):
        found["LLM_BASE_URL"] = f"http://127.0.0.1:{port}/v1"
        found["LLM_API_KEY"] = credentials.model_api_key
        found["LLM_MODEL"] = MODEL
    return found


def _own_database_url(credentials: Credentials) -> str | None:
    port = credentials.ports.get("postgres")
    password = quote(credentials.postgres_password, safe="")
    return f"postgresql://postgres:{password}@127.0.0.1:{port}/{DATABASE}" if port else None


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
