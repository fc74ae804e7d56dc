"""Every process refuses wrong settings with their names, and never with their values."""

import subprocess
import sys

import pytest

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
