"""Who may import whom: the contracts of ``.importlinter`` hold, and each of them can fail."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import (
    ROOT,
    SERVICES,
    SOURCE_FOLDERS,
    files,
    imports_of,
    name_of,
    parsed,
)

LINT_TIMEOUT_S = 120

# What a core may import beside the standard library and its own package. All of it is pure.
PURE = (
    "schemas",
    "libs.catalogue",
    "libs.door",
    "libs.errors",
    "libs.ids",
    "libs.retry",
    "libs.text",
    "libs.tokens",
    "libs.traceparents",
    "orjson",
)
# Standard library modules through which time, chance or the outside would come in.
IMPURE = frozenset(
    {
        "asyncio",
        "concurrent",
        "getpass",
        "http.client",
        "http.server",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "platform",
        "queue",
        "random",
        "secrets",
        "select",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "urllib",
    }
)
IMPURE_CALLS = frozenset({"now", "utcnow", "today", "uuid1", "uuid4", "open", "print"})


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Run the import contracts on a source tree."""
    return subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=LINT_TIMEOUT_S,
        check=False,
    )


def impurities(tree: ast.Module, *, package: str) -> set[str]:
    """What a module of a core imports or calls although it may not."""
    found = set()
    for name in imports_of(tree, package=package):
        pure = (*PURE, ".".join(package.split(".")[:3]))
        if any(f"{name}.".startswith(f"{p}.") or p.startswith(f"{name}.") for p in pure):
            continue
        is_standard = name.split(".")[0] in sys.stdlib_module_names
        if not is_standard or any(f"{name}.".startswith(f"{i}.") for i in IMPURE):
            found.add(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            found.add("async")
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in IMPURE_CALLS:
                found.add(f"{name}()")
    return found


def test_the_import_contracts_hold() -> None:
    done = lint_imports(ROOT)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("path", "line", "contract"),
    [
        (
            "libs/ids.py",
            "import services.ingestion.core",
            "Services use deploy and libs, libs use schemas, never the other way",
        ),
        (
            "services/ingestion/core/turn.py",
            "import services.llm_gateway.core",
            "Services do not know each other",
        ),
        (
            "services/ingestion/core/turn.py",
            "import time",
            "The core decides; it does not wait, look at the clock or talk to anybody",
        ),
        ("services/ingestion/core/turn.py", "import deploy.local", "Only the command line knows"),
        ("libs/ids.py", "import psycopg", "psycopg has one home"),
        ("libs/ids.py", "import aiokafka", "aiokafka has one home"),
        ("libs/ids.py", "import redis", "redis has one home"),
        ("libs/ids.py", "import faststream", "FastStream has one home"),
        ("libs/ids.py", "import aiohttp", "aiohttp is for providers"),
        ("libs/ids.py", "import opentelemetry", "opentelemetry has one home"),
        ("libs/ids.py", "import prometheus_client", "prometheus_client has one home"),
        ("libs/ids.py", "import starlette", "Only the gateway serves HTTP"),
        ("libs/ids.py", "import rich", "Only the command line draws"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(
    tmp_path: Path, path: str, line: str, contract: str
) -> None:
    shutil.copy(ROOT / ".importlinter", tmp_path)
    for folder in SOURCE_FOLDERS:
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    with (tmp_path / path).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")

    done = lint_imports(tmp_path)

    assert done.returncode == 1
    broken = [text for text in done.stdout.splitlines() if text.endswith("BROKEN")]
    assert any(text.startswith(contract) for text in broken), done.stdout[-3000:]


@pytest.mark.parametrize("service", SERVICES)
def test_a_core_imports_nothing_impure_and_asks_for_no_time_or_chance(service: str) -> None:
    found = {}
    for path in files(f"services/{service}/core"):
        package = ".".join(path.relative_to(ROOT).parent.parts)
        if impure := impurities(parsed(path), package=package):
            found[name_of(path)] = sorted(impure)

    assert found == {}


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("import time", "time"),
        ("from os import environ", "os"),
        ("import pydantic", "pydantic"),
        ("from libs.postgres import Database", "libs.postgres"),
        ("from services.ingestion import store", "services.ingestion.store"),
        ("from services.context_assembly.core import plan", "services.context_assembly.core"),
        ("async def f(): pass", "async"),
        ("from datetime import datetime\nx = datetime.now()", "now()"),
        ("from uuid import uuid4\nx = uuid4()", "uuid4()"),
    ],
)
def test_an_impurity_is_named(source: str, named: str) -> None:
    assert named in impurities(ast.parse(source), package="services.ingestion.core")


def test_pure_imports_are_let_through() -> None:
    source = (
        "from datetime import datetime\nfrom uuid import UUID, uuid5\nimport hashlib\n"
        "from schemas.turns import TurnEndedV1\nfrom libs import ids\n"
        "from libs.ids import turn_id\n"
        "from services.ingestion.core.turn import TRANSITIONS\nfrom . import policy\n"
    )
    assert impurities(ast.parse(source), package="services.ingestion.core") == set()
