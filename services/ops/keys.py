"""Makes, lists and revokes API keys and door keys, through the gateway's operator functions."""

import getpass
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast
from uuid import UUID

from pydantic import SecretStr

from libs.api_keys import SCOPES, SECRET_BYTES, hash_api_key, new_api_key, visible_prefix
from libs.clock import SystemClock
from libs.door import door_secret
from libs.errors import MisconfiguredSettings
from libs.postgres import Database
from libs.postgres.queries import load_queries
from services.ops.data_folder import DataFolder
from services.ops.database import database_url, opened_database
from services.ops.settings import OpsSettings

FIRST_TENANT = "local"
FIRST_PRINCIPAL = "owner"
DEFAULT_SCOPES = ("chat", "read")
POOL_SIZE = 2  # one command, one statement at a time
Row: TypeAlias = dict[str, Any]
_SQL = load_queries("services.ops")


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A key that was just made; its secret is shown once and stored nowhere by us.

    Attributes:
        key: The secret: an API key, or a door key's secret in hexadecimal.
        principal_id: None for a door key.
    """

    key: SecretStr
    key_id: UUID
    tenant_id: UUID
    principal_id: UUID | None
    scopes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The key as it is printed, secret included."""
        return {
            "key": self.key.get_secret_value(),
            "key_id": str(self.key_id),
            "tenant_id": str(self.tenant_id),
            "principal_id": None if self.principal_id is None else str(self.principal_id),
            "scopes": list(self.scopes),
        }


class KeyRing:
    """Keys of one deployment."""

    def __init__(self, database: Database, *, master_key: SecretStr | None) -> None:
        self._database = database
        self._master_key = master_key
        self._clock = SystemClock()

    async def create(
        self, tenant: str, principal: str, scopes: Sequence[str] = DEFAULT_SCOPES
    ) -> MadeKey:
        """Make an API key; tenant and principal are made where they are missing.

        Raises:
            StoreUnavailable: No database.
        """
        key = new_api_key(os.urandom(SECRET_BYTES))
        rows = await self._database.fetch(
            _SQL["create_key"],
            {
                "key_id": self._clock.new_id(),
                "tenant": tenant,
                "new_tenant_id": self._clock.new_id(),
                "principal": principal,
                "new_principal_id": self._clock.new_id(),
                "scopes": list(scopes),
                "prefix": visible_prefix(key),
                "hash": hash_api_key(key),
                "actor": actor(),
            },
        )
        return MadeKey(key=SecretStr(key), **{**rows[0], "scopes": tuple(rows[0]["scopes"])})

    async def create_door_key(self, tenant: str) -> MadeKey:
        """Make a door key for one tenant's front ends.

        Raises:
            MisconfiguredSettings: The master key is not set, so no secret can be derived.
        """
        if self._master_key is None:
            msg = (
                "A door key's secret is derived from TURNWIRE_DOOR_MASTER_KEY, which is not set "
                "here. Set it to the value that the gateway and ingestion have."
            )
            raise MisconfiguredSettings(msg)
        rows = await self._database.fetch(
            _SQL["create_door_key"],
            {
                "key_id": self._clock.new_id(),
                "tenant": tenant,
                "new_tenant_id": self._clock.new_id(),
                "actor": actor(),
            },
        )
        key_id = cast("UUID", rows[0]["door_key_id"])
        secret = door_secret(self._master_key.get_secret_value().encode(), key_id)
        tenant_id = cast("UUID", rows[0]["tenant_id"])
        return MadeKey(SecretStr(secret.hex()), key_id, tenant_id, None, ())

    async def all(self, tenant: str | None = None) -> list[Row]:
        """All keys or one tenant's, oldest first; never a secret."""
        return await self._database.fetch(_SQL["list_keys"], {"tenant": tenant})

    async def revoke(self, key_id: UUID) -> bool:
        """Revoke an API key or a door key; False where there was none that still worked."""
        rows = await self._database.fetch(_SQL["revoke_key"], {"key_id": key_id, "actor": actor()})
        return bool(rows[0]["changed"])

    async def first_key(self, folder: DataFolder) -> tuple[str, bool]:
        """The key of a data folder's first start, made if it is missing or no longer works.

        Returns:
            The key, and whether it is new.
        """
        kept = folder.api_key
        if kept is not None:
            prefix = visible_prefix(kept)
            if any(row["prefix"] == prefix and not row["revoked_at"] for row in await self.all()):
                return kept, False
        made = await self.create(FIRST_TENANT, FIRST_PRINCIPAL, SCOPES)
        key = made.key.get_secret_value()
        folder.keep_key(key)
        return key, True


@asynccontextmanager
async def opened_ring(settings: OpsSettings) -> AsyncIterator[KeyRing]:
    """The keys of the deployment that the settings name.

    Raises:
        MisconfiguredSettings: They name no database.
        CommandFailed: The database cannot be used.
    """
    url = database_url(settings)
    async with ring_at(url, master_key=settings.door_master_key) as ring:
        yield ring


@asynccontextmanager
async def ring_at(url: str, *, master_key: SecretStr | None = None) -> AsyncIterator[KeyRing]:
    """The keys of the deployment whose database is at ``url``, as the role turnwire_ops.

    Raises:
        CommandFailed: The database cannot be used.
    """
    async with opened_database(url, schema="frontend_gateway", size=POOL_SIZE) as database:
        yield KeyRing(database, master_key=master_key)


def actor() -> str:
    """Who acts, for the audit row."""
    try:
        return f"turnwire:{getpass.getuser()}"
    except (OSError, KeyError):  # a container's user without a name
        return f"turnwire:uid-{os.getuid()}"
