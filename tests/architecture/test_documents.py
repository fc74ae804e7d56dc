"""Documents name files and tests that exist."""

import re
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, files, name_of

NAMED_FILE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|sql|md|yaml|yml|toml))`")
SECTION = re.compile(r"^## .*?(?:\(`(services/\w+)`\))?$", re.MULTILINE)
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
CASES = frozenset(f"B-{number:03}" for number in (*range(1, 27), *range(32, 46), *range(96, 104)))
"""Those between are of services that do not exist yet: summaries, tools, memory, documents."""

LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def missing_in_the_walk(text: str) -> list[str]:
    """Files that the walk of a turn names and that are not there."""
    missing = []
    base = ROOT
    for line in text.splitlines():
        if heading := SECTION.match(line):
            base = ROOT / (heading.group(1) or "")
        missing += [
            name
            for name in NAMED_FILE.findall(line)
            if not (base / name).is_file() and not (ROOT / name).is_file()
        ]
    return missing


def missing_tests(text: str) -> list[str]:
    """Tests that a text names as ``file::test`` and that are not there."""
    return [
        f"{path}::{test}"
        for path, test in NAMED_TEST.findall(text)
        if not (ROOT / path).is_file()
        or f"def {test}(" not in (ROOT / path).read_text(encoding="utf-8")
    ]


def cases_in(text: str) -> dict[str, str]:
    """What the list says of each case, by code."""
    parts = re.split(r"^## (B-\d{3})$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def broken_links(path: Path) -> list[str]:
    """Relative links of a page that lead nowhere."""
    return [
        link
        for link in LINK.findall(path.read_text(encoding="utf-8"))
        if not (path.parent / link).exists()
    ]


def test_the_walk_of_a_turn_names_files_that_exist() -> None:
    assert missing_in_the_walk((ROOT / "docs" / "turn.md").read_text(encoding="utf-8")) == []


def test_a_file_that_is_gone_is_noticed() -> None:
    text = "## 1. It asks (`services/ingestion`)\n| a | `core/turn.py`, `core/gone.py` |\n"
    assert missing_in_the_walk(text) == ["core/gone.py"]


def test_the_list_of_cases_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")

    assert NAMED_TEST.findall(text)
    assert missing_tests(text) == []


def test_the_matrix_of_invariants_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")

    assert NAMED_TEST.findall(text)
    assert missing_tests(text) == []


def test_no_case_is_without_a_test() -> None:
    cases = cases_in((ROOT / "docs" / "cases.md").read_text(encoding="utf-8"))

    assert CASES - set(cases) == set()
    assert [code for code, text in cases.items() if not NAMED_TEST.search(text)] == []


def test_a_case_that_is_gone_is_noticed() -> None:
    cases = cases_in("# Cases\n\n## B-001\n\n- `tests/a.py::test_b`\n\n## B-003\n\nHere: so.\n")

    assert set(cases) == {"B-001", "B-003"}
    assert [code for code, text in cases.items() if not NAMED_TEST.search(text)] == ["B-003"]


def test_a_test_that_is_gone_is_noticed() -> None:
    here = "tests/architecture/test_documents.py"
    text = f"`{here}::test_a_test_that_is_gone_is_noticed` and `{here}::test_nothing`"
    assert missing_tests(text) == [f"{here}::test_nothing"]


@pytest.mark.parametrize(
    "path",
    [
        *files("docs", "services", "libs", "schemas", "deploy", suffix=".md"),
        *sorted(ROOT.glob("*.md")),
    ],
    ids=name_of,
)
def test_every_link_leads_somewhere(path: Path) -> None:
    assert broken_links(path) == []
