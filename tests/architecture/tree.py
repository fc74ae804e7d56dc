"""Reads the source tree for the tests of its architecture."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_FOLDERS = ("services", "libs", "schemas", "deploy")
SERVICES = ("frontend_gateway", "ingestion", "context_assembly", "llm_gateway")


def files(*folders: str, suffix: str = ".py", root: Path = ROOT) -> Iterator[Path]:
    """All files below the folders that end with the suffix, in a stable order."""
    for folder in folders:
        yield from sorted(
            path for path in (root / folder).rglob(f"*{suffix}") if "__pycache__" not in path.parts
        )


def parsed(path: Path) -> ast.Module:
    """The syntax tree of one Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def name_of(path: Path, *, root: Path = ROOT) -> str:
    """The path as it is written in messages and allow-lists."""
    return path.relative_to(root).as_posix()


def imports_of(tree: ast.Module, *, package: str = "") -> set[str]:
    """Every module that a file imports, wherever the statement stands, as absolute names.

    ``from a import b`` counts as ``a`` and as ``a.b``, since ``b`` may be a module.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parts, base] if base else parts)
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found
