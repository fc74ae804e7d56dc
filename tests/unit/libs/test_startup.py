"""Every process refuses wrong settings with their names, and never with their values."""

import subprocess
import sys
from pathlib import Path

import pytest

from libs.catalogue import DEFAULT_PATH

SERVICES = ("frontend_gateway", "ingestion", "context_assembly", "llm_gateway")


@pytest.mark.parametrize("service", SERVICES)
def test_wrong_settings_are_named_without_their_values(service: str) -> None:
    prefix = f"TURNWIRE_{service.upper()}__"
    done = subprocess.run(
        [sys.executable, "-m", f"services.{service}"],
        env={prefix + "DATABASE_URL": "postgresql://u:hunter2@h/x", prefix + "OPS_PORT": "canary"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode == 2
    assert "ops_port" in done.stderr
    assert "canary" not in done.stderr + done.stdout
    assert "hunter2" not in done.stderr + done.stdout


@pytest.mark.parametrize("service", SERVICES)
def test_budgets_that_do_not_fit_a_window_are_refused_at_start_with_their_sum(
    service: str, tmp_path: Path
) -> None:
    models = tmp_path / "models.toml"
    shipped = DEFAULT_PATH.read_text(encoding="utf-8")
    models.write_text(shipped.replace("floor = 1024", "floor = 9000"), encoding="utf-8")
    nowhere = "127.0.0.1:1"

    done = subprocess.run(
        [sys.executable, "-m", f"services.{service}"],
        env={
            f"TURNWIRE_{service.upper()}__DATABASE_URL": f"postgresql://u:hunter2@{nowhere}/x",
            "TURNWIRE_DOOR_MASTER_KEY": "0123456789abcdef",
            "TURNWIRE_MODELS_FILE": str(models),
            "KAFKA_BOOTSTRAP_SERVERS": nowhere,
            "REDIS_URL": f"redis://{nowhere}",
            "LLM_BASE_URL": f"http://{nowhere}/v1",
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    told = done.stderr + done.stdout
    assert done.returncode == 2, told
    for part in ("floors (9000)", "add up to 18668 tokens", "window of 8192"):
        assert part in told
    assert "no connection" not in told, "the file is read before anything is waited for"
