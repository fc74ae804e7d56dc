"""Looks at everything that Turnwire stands on, and says what is wrong and how to mend it."""

import asyncio
import os
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import httpx
import psycopg

from deploy.local.credentials import credentials_path
from deploy.local.ports import holder, is_free
from deploy.local.stack import without_login
from libs.errors import ChatError
from libs.postgres import Database
from libs.postgres.migrations import ChangedMigration
from libs.postgres.queries import load_queries
from libs.redis.live_stream import RedisLiveStream
from libs.settings import with_files
from services.ops import topics
from services.ops.configuration import Configuration
from services.ops.data_folder import DataFolder
from services.ops.migrations import SERVICES, pending_migrations
from services.ops.settings import OpsSettings
from services.ops.status import status_of

Verdict = Literal["ok", "warn", "fail"]

MIN_PYTHON = (3, 11)
MIN_POSTGRES = 15  # row policies and merge as the statements use them
MAX_SKEW_S = 0.5  # leases are seconds long; the database's clock decides about them
LOW_DISK_BYTES = 2 * 1024**3  # a day of the local stack's logs and segments
FULL_DISK_BYTES = 512 * 1024**2
CHECK_BOUND_S = 20.0
MODEL_BOUND_S = 5.0
CONNECT_S = 5.0  # to the database
ASKED = ("DATABASE_URL", "KAFKA_BOOTSTRAP_SERVERS", "REDIS_URL", "LLM_BASE_URL", "LLM_API_KEY")
PACKAGES = ("turnwire", "psycopg", "aiokafka", "redis", "pydantic", "starlette", "uvicorn")

# Hold a tenant and no row policy on purpose: they are read before a tenant is known.
EXEMPT_TABLES = (
    "api_keys",
    "dead_letters",
    "door_keys",
    "open_turns",
    "request_outcomes",
    "work",
    "workers",
)
_SQL = load_queries("services.ops")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look found.

    Attributes:
        fix: What to do; empty where all is well.
    """

    name: str
    verdict: Verdict
    detail: str
    fix: str = ""


Look = Callable[[], Awaitable[list[Finding]]]


class Doctor:
    """Looks at one deployment.

    Args:
        folder: A local stack's folder; what the environment names comes first.
        port: That the gateway needs on this machine.
    """

    def __init__(
        self,
        folder: DataFolder,
        configuration: Configuration,
        settings: OpsSettings,
        *,
        port: int,
    ) -> None:
        self._folder = folder
        self._configuration = configuration
        self._port = port
        self._settings = settings
        self._ops_url = self._settings.database_url.get_secret_value()
        self._environ = with_files(os.environ, ASKED)
        self._admin_url = self._environ.get("DATABASE_URL", "")
        self._has_kafka = bool(self._environ.get("KAFKA_BOOTSTRAP_SERVERS"))

    async def findings(self) -> list[Finding]:
        """Everything that was looked at, in the order in which things depend on each other."""
        looks: tuple[Look, ...] = (
            self._versions,
            self._folder_modes,
            self._disk,
            self._ports,
            self._settings_of_services,
            self._postgres,
            self._migrations,
            self._row_policies,
            self._kafka,
            self._redis,
            self._model,
        )
        # One after the other: side by side they would call each other's work slow.
        return [finding for look in looks for finding in await _bounded(look)]

    async def _versions(self) -> list[Finding]:
        found = ".".join(map(str, sys.version_info[:3]))
        is_new = sys.version_info[:2] >= MIN_PYTHON
        packages = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
        python = Finding(
            "python", "ok" if is_new else "fail", found, "" if is_new else "Install Python 3.11."
        )
        lacking = [name for name in PACKAGES if _version(name) == "missing"]
        fix = "Install the project from its lock file: `make setup`." if lacking else ""
        return [python, Finding("packages", "fail" if lacking else "ok", packages, fix)]

    async def _folder_modes(self) -> list[Finding]:
        path = self._folder.path
        if not self._folder.exists:
            fix = "Nothing, if your deployment is not local; else `turnwire up`."
            return [Finding("data folder", "warn", f"{path} is not made yet", fix)]
        secrets = (credentials_path(path), self._folder.key_path)
        wide = [
            str(file)
            for file in secrets
            if file.exists() and stat.S_IMODE(file.stat().st_mode) & 0o077
        ]
        if wide:
            fix = f"chmod 600 {' '.join(wide)}"
            return [Finding("data folder", "fail", "others can read its secrets", fix)]
        return [Finding("data folder", "ok", str(path))]

    async def _disk(self) -> list[Finding]:
        path = self._folder.path
        while not path.exists():
            path = path.parent
        free = shutil.disk_usage(path).free
        detail = f"{free / 1024**3:,.1f} GiB free at {path}"
        if free >= LOW_DISK_BYTES:
            return [Finding("disk", "ok", detail)]
        verdict: Verdict = "fail" if free < FULL_DISK_BYTES else "warn"
        return [Finding("disk", verdict, detail, "Free some space, or move --data-dir.")]

    async def _ports(self) -> list[Finding]:
        status = await status_of(self._folder)
        if status.started_at is not None:
            ailing = [p.name for p in status.parts if p.health not in ("ready", "given")]
            if ailing:
                fix = "Read their logs, which `turnwire status` names."
                return [Finding("processes", "fail", f"not ready: {', '.join(ailing)}", fix)]
            return [Finding("processes", "ok", f"{len(status.parts)} run at {status.url}")]
        if is_free(self._port):
            return [Finding("port", "ok", f"{self._port} is free")]
        detail = f"{self._port} is taken by {holder(self._port)}"
        return [Finding("port", "warn", detail, "Stop it, or use `turnwire up --port`.")]

    async def _settings_of_services(self) -> list[Finding]:
        mistakes = self._configuration.mistakes()
        if not mistakes:
            return [Finding("settings", "ok", "every service would start with them")]
        detail = "; ".join(f"{m.service} {m.setting}: {m.why}" for m in mistakes)
        fix = "Set them as docs/settings.md says; `turnwire config show` prints what is in force."
        return [Finding("settings", "fail", detail, fix)]

    async def _postgres(self) -> list[Finding]:
        if not self._ops_url:
            return [_not_named("postgres", "TURNWIRE_OPS__DATABASE_URL")]
        before = time.time()
        row = (await _rows(self._ops_url, "server_settings"))[0]
        skew_s = _skew(before, time.time(), row["epoch_s"])
        detail = f"{row['version']} at {without_login(self._ops_url)}"
        is_new = int(row["version"].split(".")[0]) >= MIN_POSTGRES
        fix = "" if is_new else f"Use Postgres {MIN_POSTGRES} or newer."
        return [
            Finding("postgres", "ok" if is_new else "fail", detail, fix),
            *_durability(row),
            _clock(skew_s),
        ]

    async def _migrations(self) -> list[Finding]:
        if not self._admin_url:
            fix = "Set DATABASE_URL to the account that migrates, here alone."
            return [Finding("migrations", "warn", "not looked at: they need DATABASE_URL", fix)]
        try:
            pending = await pending_migrations(self._admin_url)
        except ChangedMigration as error:
            fix = "Use the release that migrated this database, or put the file's text back."
            return [Finding("migrations", "fail", str(error), fix)]
        if not pending:
            return [Finding("migrations", "ok", "all of this release are applied")]
        names = ", ".join(f"{m.unit}/{m.name}" for m in pending)
        return [Finding("migrations", "fail", f"missing: {names}", "Run `turnwire migrate`.")]

    async def _row_policies(self) -> list[Finding]:
        if not self._ops_url:
            return [_not_named("row policies", "TURNWIRE_OPS__DATABASE_URL")]
        rows = await _rows(
            self._ops_url,
            "unguarded_tables",
            {"schemas": list(SERVICES), "exempt": list(EXEMPT_TABLES)},
        )
        roles = await _rows(self._ops_url, "bypassing_roles")
        names = [row["name"] for row in (*rows, *roles)]
        if not names:
            detail = "every table of tenants is bound and forced, and no role passes them by"
            return [Finding("row policies", "ok", detail)]
        fix = (
            "alter table … enable row level security, force row level security, with both "
            "policies; alter role … nosuperuser nobypassrls."
        )
        return [Finding("row policies", "fail", f"not bound: {', '.join(names)}", fix)]

    async def _kafka(self) -> list[Finding]:
        if not self._has_kafka:
            return [_not_named("kafka", "KAFKA_BOOTSTRAP_SERVERS")]
        bootstrap = self._settings.kafka_bootstrap_servers
        missing = await topics.missing(
            bootstrap,
            profile=self._settings.topics_profile,
            security=topics.security_of(self._settings),
        )
        reached = Finding("kafka", "ok", bootstrap)
        if not missing:
            return [reached, Finding("topics", "ok", "all of this release are there")]
        fix = "Run `turnwire topics apply`."
        return [reached, Finding("topics", "fail", f"missing: {', '.join(missing)}", fix)]

    async def _redis(self) -> list[Finding]:
        if not self._environ.get("REDIS_URL"):
            return [_not_named("redis", "REDIS_URL")]
        url = self._settings.redis_url.get_secret_value()
        async with RedisLiveStream.open(url) as live:
            await live.last_id(uuid.uuid4())
        return [Finding("redis", "ok", without_login(url))]

    async def _model(self) -> list[Finding]:
        base_url = self._environ.get("LLM_BASE_URL")
        if not base_url:
            return [_not_named("model", "LLM_BASE_URL")]
        key = self._environ.get("LLM_API_KEY", "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        where = without_login(base_url)
        try:
            async with httpx.AsyncClient(timeout=MODEL_BOUND_S, trust_env=False) as client:
                response = await client.get(f"{base_url.rstrip('/')}/models", headers=headers)
        except httpx.TransportError as error:
            fix = "See that it runs and that LLM_BASE_URL is right."
            detail = f"{where} does not answer ({type(error).__name__})"
            return [Finding("model", "fail", detail, fix)]
        if response.is_success:
            return [Finding("model", "ok", where)]
        verdict: Verdict = "fail" if response.status_code in (401, 403) else "warn"
        fix = "Check LLM_API_KEY and LLM_BASE_URL; some endpoints list no models, which is fine."
        return [Finding("model", verdict, f"{where} answers {response.status_code}", fix)]


def _name_of(look: Look) -> str:
    return look.__name__.strip("_").replace("_", " ")


async def _bounded(look: Look) -> list[Finding]:
    """One look; what it could not reach is a finding, not the end of the others."""
    name = _name_of(look)
    fix = "See that it runs and that its URL is right; a local stack is started by `turnwire up`."
    try:
        async with asyncio.timeout(CHECK_BOUND_S):
            return await look()
    except TimeoutError:
        return [Finding(name, "fail", f"no answer within {CHECK_BOUND_S:.0f} s", fix)]
    except (ChatError, psycopg.Error, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return [Finding(name, "fail", reason, fix)]


async def _rows(
    url: str, query: str, parameters: dict[str, list[str]] | None = None
) -> list[dict[str, str]]:
    database = await Database.open(url, schema="turnwire", size=2, timeout_s=CONNECT_S)
    try:
        return await database.fetch(_SQL[query], parameters or {})
    finally:
        await database.close()


def _skew(before_s: float, after_s: float, database_s: float | str) -> float:
    """How far the database's clock is from ours; nothing while its answer is between our two."""
    at = float(database_s)
    return at - after_s if at > after_s else min(0.0, at - before_s)


def _clock(skew_s: float) -> Finding:
    detail = f"the database's clock is {skew_s:+.3f} s from this machine's"
    if abs(skew_s) <= MAX_SKEW_S:
        return Finding("clock", "ok", detail)
    return Finding("clock", "fail", detail, "Let both machines follow a time server.")


def _durability(row: dict[str, str]) -> list[Finding]:
    wanted: dict[str, tuple[str, ...]] = {
        "fsync": ("on",),
        "full_page_writes": ("on",),
        "synchronous_commit": ("on", "remote_write", "remote_apply"),
    }
    off = [f"{name} is {row[name]}" for name, values in wanted.items() if row[name] not in values]
    if not off:
        return [Finding("durability", "ok", "fsync, synchronous_commit, full_page_writes are on")]
    fix = "Turn them on in postgresql.conf; with them off an accepted message can be lost."
    return [Finding("durability", "fail", ", ".join(off), fix)]


def _not_named(name: str, variable: str) -> Finding:
    fix = f"Set {variable}, or start a local stack with `turnwire up`."
    return Finding(name, "fail", f"{variable} is not set and no local stack was found", fix)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
