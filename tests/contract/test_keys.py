"""Keys made by the command line are what the gateway's tables and the door accept."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from pydantic import SecretStr

from deploy.local.credentials import load_or_make, make_data_dir
from libs.api_keys import hash_api_key, is_api_key, visible_prefix
from libs.door import GATEWAY_DOOR_KEY_ID, door_secret
from libs.errors import MisconfiguredSettings
from services.ops.data_folder import DataFolder
from services.ops.failures import ExitCode
from services.ops.keys import KeyRing, ring_at
from tests.rig.parts import TestDatabase

pytestmark = pytest.mark.postgres
ROOT = Path(__file__).parents[2]
MASTER_KEY = "0123456789abcdef0123456789abcdef"
TIMEOUT_S = 60


@pytest.fixture
async def ring(database: TestDatabase) -> AsyncIterator[KeyRing]:
    async with ring_at(database.url_of("ops"), master_key=SecretStr(MASTER_KEY)) as ring:
        yield ring


def rows(database: TestDatabase, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.admin_url) as connection:
        return connection.execute(statement).fetchall()


def turnwire(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "services.ops", *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


async def test_of_a_key_only_the_hash_is_stored(ring: KeyRing, database: TestDatabase) -> None:
    made = await ring.create("acme", "ada")
    key = made.key.get_secret_value()
    assert is_api_key(key)
    assert rows(
        database,
        "select id, tenant_id, principal_id, prefix, hash, scopes from frontend_gateway.api_keys",
    ) == [
        (
            made.key_id,
            made.tenant_id,
            made.principal_id,
            visible_prefix(key),
            hash_api_key(key),
            ["chat", "read"],
        )
    ]
    audit = rows(
        database, "select action, target_id, details::text from frontend_gateway.operator_actions"
    )
    assert [(action, target) for action, target, _ in audit] == [("key.created", made.key_id)]
    assert key not in str(audit)


async def test_tenants_and_principals_are_made_once(ring: KeyRing) -> None:
    first = await ring.create("acme", "ada")
    again = await ring.create("acme", "ada", ("read",))
    other = await ring.create("acme", "grace")
    elsewhere = await ring.create("umbrella", "ada")
    assert (again.tenant_id, again.principal_id) == (first.tenant_id, first.principal_id)
    assert again.scopes == ("read",)
    assert other.tenant_id == first.tenant_id
    assert other.principal_id != first.principal_id
    assert elsewhere.tenant_id != first.tenant_id
    assert elsewhere.principal_id != first.principal_id


async def test_a_list_names_keys_without_their_secrets(ring: KeyRing) -> None:
    made = await ring.create("acme", "ada")
    await ring.create("umbrella", "bob")
    listed = await ring.all("acme")
    assert [(row["key_id"], row["kind"], row["tenant"]) for row in listed] == [
        (made.key_id, "api", "acme")
    ]
    assert made.key.get_secret_value() not in str(listed)
    assert GATEWAY_DOOR_KEY_ID in {row["key_id"] for row in await ring.all()}


async def test_a_key_is_revoked_once(ring: KeyRing) -> None:
    made = await ring.create("acme", "ada")
    assert await ring.revoke(made.key_id) is True
    assert await ring.revoke(made.key_id) is False
    assert await ring.revoke(uuid4()) is False
    assert (await ring.all("acme"))[0]["revoked_at"] is not None


async def test_a_door_key_has_the_secret_that_the_door_derives(
    ring: KeyRing, database: TestDatabase
) -> None:
    made = await ring.create_door_key("acme")
    assert made.key.get_secret_value() == door_secret(MASTER_KEY.encode(), made.key_id).hex()
    assert (made.key_id, made.tenant_id) in rows(
        database, "select id, tenant_id from frontend_gateway.door_keys"
    )
    assert made.document()["principal_id"] is None


async def test_without_the_master_key_there_is_no_door_key(database: TestDatabase) -> None:
    async with ring_at(database.url_of("ops")) as ring:
        with pytest.raises(MisconfiguredSettings, match="TURNWIRE_DOOR_MASTER_KEY"):
            await ring.create_door_key("acme")


async def test_the_first_key_is_kept_until_it_no_longer_works(
    ring: KeyRing, tmp_path: Path
) -> None:
    make_data_dir(tmp_path / "data")
    load_or_make(tmp_path / "data")
    folder = DataFolder(tmp_path / "data")
    key, is_new = await ring.first_key(folder)
    assert is_new
    assert folder.api_key == key
    assert await ring.first_key(folder) == (key, False)

    listed = await ring.all("local")
    assert listed[0]["scopes"] == ["chat", "read", "admin"]
    await ring.revoke(listed[0]["key_id"])
    other, is_new = await ring.first_key(folder)
    assert is_new
    assert other != key
    assert (await ring.all("local"))[0]["principal_id"] == (await ring.all("local"))[1][
        "principal_id"
    ]


def test_the_operator_cannot_read_a_table(database: TestDatabase) -> None:
    with (
        psycopg.connect(database.url_of("ops")) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("select hash from frontend_gateway.api_keys")


def test_the_command_prints_the_key_as_json_and_nothing_else(database: TestDatabase) -> None:
    own = {"TURNWIRE_OPS__DATABASE_URL": database.url_of("ops")}
    done = turnwire("keys", "create", "--tenant", "acme", "--principal", "ada", "--json", **own)
    assert done.returncode == ExitCode.OK, done.stderr
    made = json.loads(done.stdout)
    assert set(made) == {"key", "key_id", "tenant_id", "principal_id", "scopes"}
    assert is_api_key(made["key"])
    assert made["key"] not in done.stderr
    assert made["scopes"] == ["chat", "read"]

    listed = turnwire("keys", "ls", "--json", **own)
    assert made["key_id"] in listed.stdout
    assert made["key"] not in listed.stdout

    asked = turnwire("keys", "revoke", made["key_id"], "--no-input", **own)
    assert asked.returncode == ExitCode.USAGE
    assert "--yes" in asked.stderr
    revoked = turnwire("keys", "revoke", made["key_id"], "--yes", "--json", **own)
    assert json.loads(revoked.stdout) == {"revoked": made["key_id"]}
    again = turnwire("keys", "revoke", made["key_id"], "--yes", **own)
    assert again.returncode == ExitCode.FAILED


def test_a_key_for_captures_alone_can_be_made_and_others_do_not_have_it(
    database: TestDatabase,
) -> None:
    own = {"TURNWIRE_OPS__DATABASE_URL": database.url_of("ops")}
    done = turnwire(*("keys", "create", "--tenant", "acme", "--scope", "captures", "--json"), **own)
    assert json.loads(done.stdout)["scopes"] == ["captures"], done.stderr
    done = turnwire(*("keys", "create", "--tenant", "acme", "--scope", "capture"), **own)
    assert done.returncode == ExitCode.USAGE
    assert "chat, read, admin, captures" in done.stderr


def test_the_command_makes_door_keys_with_the_shared_master_key(database: TestDatabase) -> None:
    done = turnwire(
        *("keys", "create", "--tenant", "acme", "--door", "--json"),
        TURNWIRE_OPS__DATABASE_URL=database.url_of("ops"),
        TURNWIRE_DOOR_MASTER_KEY=MASTER_KEY,
    )
    made = json.loads(done.stdout)
    assert made["key"] == door_secret(MASTER_KEY.encode(), UUID(made["key_id"])).hex()
    assert MASTER_KEY not in done.stdout + done.stderr


def test_no_database_is_not_ready_and_shows_no_password() -> None:
    url = "postgresql://turnwire_ops:pass-word@127.0.0.1:9/turnwire"
    done = turnwire("keys", "ls", TURNWIRE_OPS__DATABASE_URL=url)
    assert done.returncode == ExitCode.NOT_READY
    assert "pass-word" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
