"""Rules of the house that no linter knows; each is shown to be able to fail."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.failpoints import FAIL_POINTS
from tests.architecture.tree import ROOT, SERVICES, SOURCE_FOLDERS, files, name_of, parsed

VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "misc"})
README_HEADINGS = (
    "Does",
    "In",
    "Out",
    "Owns",
    "Invariants",
    "When it fails",
    "Run alone",
)
ANATOMY = ("__init__.py", "__main__.py", "app.py", "settings.py", "ports.py", "store.py")
PRIVATE_TEXT = re.compile(
    r"""\b(?:contract|streaming|conventions|promises|look|architecture)\.md\b
      | (?<![\w/])/(?:home|root|Users)/\w | \bissue\s+\#?\d | \brule\s+R\d\b | §\s*[AB]\d""",
    re.VERBOSE | re.IGNORECASE,
)
CASE_CODE = re.compile(r"\bB-\d{3}\b")
FAIL_POINT_NAME = re.compile(r"""["']([\w{}.]+\.(?:after|before)_\w+)["']""")


def catch_alls(tree: ast.Module) -> Iterator[int]:
    """Lines of handlers that catch everything and keep it; tidying up and raising on is fine."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            last = node.body[-1]
            if isinstance(last, ast.Raise) and last.exc is None:
                continue
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            for kind in kinds:
                if kind is None or (
                    isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")
                ):
                    yield node.lineno


def bare_sleeps(tree: ast.Module) -> Iterator[int]:
    """Lines that sleep outside any loop: waiting for luck instead of for a condition.

    ``time.sleep`` in a coroutine waits for nothing: it blocks the loop, and is there to do so.
    """
    blocking = {
        id(call)
        for function in ast.walk(tree)
        if isinstance(function, ast.AsyncFunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "time.sleep"
    }
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, looped = stack.pop()
        if isinstance(node, ast.Call) and not looped and id(node) not in blocking:
            called = ast.unparse(node.func)
            zero = bool(node.args) and ast.unparse(node.args[0]) in ("0", "0.0")
            if called in ("time.sleep", "asyncio.sleep", "sleep") and not zero:
                yield node.lineno
        inside = looped or isinstance(node, ast.While | ast.For | ast.AsyncFor)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = False
        stack.extend((child, inside) for child in ast.iter_child_nodes(node))


def vague(path: Path) -> bool:
    """Whether a module or a folder is named for nothing in particular."""
    return any(part.removesuffix(".py") in VAGUE_NAMES for part in path.parts)


def private_texts(text: str) -> list[str]:
    """What a reader of this repository could not look up."""
    return [match.group() for match in PRIVATE_TEXT.finditer(text)]


def test_everything_is_caught_in_the_batch_loop_alone() -> None:
    found = {
        name_of(path): lines
        for path in files(*SOURCE_FOLDERS)
        if not name_of(path).startswith("libs/kafka/") and (lines := list(catch_alls(parsed(path))))
    }
    assert found == {}


def test_a_catch_all_is_noticed() -> None:
    source = "try: f()\nexcept Exception: pass\ntry: f()\nexcept (OSError, BaseException): pass\n"
    assert list(catch_alls(ast.parse(source + "try: f()\nexcept: pass\n"))) == [2, 4, 6]
    assert list(catch_alls(ast.parse("try: f()\nexcept OSError: pass\n"))) == []
    assert list(catch_alls(ast.parse("try: f()\nexcept Exception:\n  g()\n  raise\n"))) == []


def test_no_test_sleeps_for_luck() -> None:
    found = {
        name_of(path): lines
        for path in files("tests")
        if path.parent != ROOT / "tests" / "rig"  # its servers are slow on purpose
        and path.parent != ROOT / "tests" / "sim"  # nobody waits there: its time is virtual
        and (lines := list(bare_sleeps(parsed(path))))
    }
    assert found == {}


def test_a_sleep_for_luck_is_noticed() -> None:
    source = "import time\ntime.sleep(1)\nwhile not ready():\n    time.sleep(0.05)\n"
    assert list(bare_sleeps(ast.parse(source))) == [2]
    assert list(bare_sleeps(ast.parse("async def f(): await asyncio.sleep(0)"))) == []
    assert list(bare_sleeps(ast.parse("for x in y:\n  def f(): time.sleep(1)"))) == [2]


def test_no_module_is_named_for_nothing() -> None:
    found = [
        name_of(path) for path in files(*SOURCE_FOLDERS, "tests") if vague(path.relative_to(ROOT))
    ]
    assert found == []
    assert vague(Path("libs/utils.py"))
    assert vague(Path("libs/common/clock.py"))
    assert not vague(Path("libs/clock.py"))


def test_every_module_says_what_it_does() -> None:
    silent = [
        name_of(path)
        for path in files(*SOURCE_FOLDERS)
        if not ast.get_docstring(parsed(path)) and path.read_text(encoding="utf-8").strip()
    ]
    assert silent == []


def committed_texts() -> Iterator[Path]:
    """Sources, documents and settings that a reader may open; this file names what it forbids."""
    for suffix in (".py", ".sql", ".md", ".yaml", ".yml", ".toml"):
        yield from files(*SOURCE_FOLDERS, "tests", "docs", suffix=suffix)
    yield from (path for path in ROOT.glob("*.md"))


def test_the_text_sends_nobody_to_a_document_that_is_not_here() -> None:
    found = {
        name_of(path): texts
        for path in committed_texts()
        if path.name != Path(__file__).name
        and (texts := private_texts(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_a_text_that_cannot_be_looked_up_is_noticed() -> None:
    text = "see contract.md 3, /home/somebody, issue 3 and rule R2; docs/cases.md is fine"
    assert len(private_texts(text)) == 4


def test_codes_of_cases_stand_only_beside_their_list() -> None:
    found = [
        name_of(path)
        for path in files(*SOURCE_FOLDERS)
        if CASE_CODE.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def fail_points_called(text: str) -> set[str]:
    """Names of the fail points in a source, a part that is filled in later written as ``*``."""
    if "failpoint" not in text and "fail_point" not in text:
        return set()
    return {re.sub(r"\{[^}]*\}", "*", name) for name in FAIL_POINT_NAME.findall(text)}


def test_every_fail_point_in_the_code_is_listed_and_every_listed_one_is_in_the_code() -> None:
    called: set[str] = set()
    for path in files(*SOURCE_FOLDERS):
        if name_of(path) != "libs/failpoints.py":
            called |= fail_points_called(path.read_text(encoding="utf-8"))
    patterns = [re.compile(re.escape(name).replace(r"\*", r"\w+")) for name in called]

    assert [n for n in FAIL_POINTS if not any(p.fullmatch(n) for p in patterns)] == []
    assert [
        name
        for name, pattern in zip(called, patterns, strict=True)
        if not any(pattern.fullmatch(listed) for listed in FAIL_POINTS)
    ] == []


def test_a_fail_point_is_found_in_a_source() -> None:
    source = 'failpoint("ingestion.after_accept_commit")\nfailpoint(f"{self._name}.relay.after_x")'
    assert fail_points_called(source) == {"ingestion.after_accept_commit", "*.relay.after_x"}


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_has_the_same_anatomy(service: str) -> None:
    folder = ROOT / "services" / service
    missing = [name for name in ANATOMY if not (folder / name).is_file()]
    missing += [name for name in ("core", "migrations") if not (folder / name).is_dir()]
    if not any((folder / name).exists() for name in ("handlers.py", "handlers", "http")):
        missing.append("handlers or http")
    if not list(folder.rglob("queries.sql")):
        missing.append("queries.sql")

    assert missing == []
    assert list((folder / "migrations").glob("0001_pre_*.sql"))


@pytest.mark.parametrize("service", [*SERVICES, "ops"])
def test_every_service_answers_the_same_questions_in_its_readme(service: str) -> None:
    text = (ROOT / "services" / service / "README.md").read_text(encoding="utf-8")
    headings = tuple(re.findall(r"^## (.+)$", text, re.MULTILINE))

    assert headings[: len(README_HEADINGS)] == README_HEADINGS
