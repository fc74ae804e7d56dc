"""Importing what decides loads nothing that talks to the outside."""

import json
import subprocess
import sys

import pytest

from tests.architecture.tree import ROOT, SERVICES

HEAVY = (
    "aiohttp",
    "aiokafka",
    "faststream",
    "httpx",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "redis",
    "starlette",
    "structlog",
    "uvicorn",
)
IMPORT_TIMEOUT_S = 60

LOAD = """
import importlib, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + "."):
    importlib.import_module(module.name)
print(json.dumps(sorted(name for name in json.loads(sys.argv[2]) if name in sys.modules)))
"""


def heavy_after_importing(module: str) -> list[str]:
    """The heavy packages that a fresh interpreter holds after importing a package whole."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD, module, json.dumps(HEAVY)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=IMPORT_TIMEOUT_S,
        check=True,
    )
    loaded: list[str] = json.loads(done.stdout)
    return loaded


@pytest.mark.parametrize(
    "module",
    [*(f"services.{name}.core" for name in SERVICES), "schemas", "libs.errors", "libs.ids"],
)
def test_the_core_of_a_service_loads_no_heavy_package(module: str) -> None:
    assert heavy_after_importing(module) == []


def test_a_heavy_package_would_be_noticed() -> None:
    assert "aiokafka" in heavy_after_importing("libs.kafka")
