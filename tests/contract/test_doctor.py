"""The doctor finds in a real database what would break a promise."""

from pathlib import Path

import psycopg
import pytest

from deploy.local.ports import pick_port
from services.ops.configuration import Configuration
from services.ops.data_folder import DataFolder
from services.ops.doctor import Doctor, Finding
from services.ops.settings import OpsSettings
from tests.rig.parts import TestDatabase

pytestmark = pytest.mark.postgres
NOWHERE = "127.0.0.1:9"  # the port of discard, where nobody listens


@pytest.fixture
def doctor(database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    mounted = tmp_path / "database-url"
    mounted.write_text(database.admin_url, encoding="utf-8")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("DATABASE_URL_FILE", str(mounted))
    monkeypatch.setenv("TURNWIRE_OPS__DATABASE_URL", database.url_of("ops"))
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", NOWHERE)
    monkeypatch.setenv("REDIS_URL", f"redis://:pass-word@{NOWHERE}/0")
    monkeypatch.setenv("LLM_BASE_URL", f"http://{NOWHERE}/v1")
    folder = DataFolder(tmp_path / "none")
    configuration = Configuration(folder, {})
    return Doctor(folder, configuration, OpsSettings(), port=pick_port())


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


async def test_a_database_of_this_release_is_well_and_what_is_away_has_a_fix(
    doctor: Doctor,
) -> None:
    found = by_name(await doctor.findings())
    for name in ("python", "postgres", "clock", "migrations", "row policies", "disk", "port"):
        assert found[name].verdict == "ok", found[name]
    for name in ("kafka", "redis", "model"):
        assert found[name].verdict == "fail", found[name]
        assert found[name].fix
    assert "pass-word" not in str(found)


async def test_a_table_without_forced_policy_and_a_lost_migration_are_found(
    doctor: Doctor, database: TestDatabase
) -> None:
    with psycopg.connect(database.admin_url) as connection:
        connection.execute("alter table ingestion.messages no force row level security")
        connection.execute(
            "delete from turnwire.migrations where unit = 'llm_gateway' and name like '0001%'"
        )
    found = by_name(await doctor.findings())
    assert found["row policies"].verdict == "fail"
    assert "ingestion.messages" in found["row policies"].detail
    assert found["migrations"].verdict == "fail"
    assert "llm_gateway/0001" in found["migrations"].detail
    assert found["migrations"].fix == "Run `turnwire migrate`."
