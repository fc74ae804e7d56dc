"""What users install brings httpx along and nothing else."""

import ast
import sys
from pathlib import Path

import turnwire

FOLDER = Path(turnwire.__file__).parent
ALLOWED = {"httpx", "turnwire"}


def roots_of(path: Path) -> set[str]:
    """First parts of the names that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(str(node.module).partition(".")[0])
    return found


def test_only_httpx_and_the_standard_library_are_imported() -> None:
    files = sorted(FOLDER.rglob("*.py"))
    assert len(files) > 5
    for path in files:
        extra = {"pytest"} if path.name == "plugin.py" else set()
        assert roots_of(path) <= ALLOWED | extra | set(sys.stdlib_module_names), path


def test_types_are_published() -> None:
    assert (FOLDER / "py.typed").is_file()
