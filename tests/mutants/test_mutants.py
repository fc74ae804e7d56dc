"""The mutants themselves, without trying them: they fit the tree, and name tests that exist."""

import ast
import shutil
from pathlib import Path

import pytest

from tests.mutants.mutant import PATCHES, BadPatch, Mutant, apply, load_all
from tests.mutants.trial import Finding, copied, run_tests
from tests.mutants.witness import is_assertion
from tests.rig.verdict import NAMES
from tests.sim.campaign import kept_names

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = load_all()
SMALL = Mutant("small", "", "at_rest", (), ("tests/test_small.py::test_it",), (), None, "ci", ())


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def copy_of_changed_files(mutant: Mutant, folder: Path) -> None:
    for change in mutant.changes:
        (folder / change.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / change.file, folder / change.file)


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 20
    assert {mutant.lane for mutant in MUTANTS.values()} == {"ci", "full"}


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_fits_the_tree_and_changes_it(tmp_path: Path, name: str) -> None:
    mutant = MUTANTS[name]
    copy_of_changed_files(mutant, tmp_path)

    apply(mutant, tmp_path)

    for change in mutant.changes:
        broken = (tmp_path / change.file).read_text(encoding="utf-8")
        assert broken != (ROOT / change.file).read_text(encoding="utf-8")
        if change.file.endswith(".py"):
            ast.parse(broken)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_names_a_promise_and_tests_that_exist(name: str) -> None:
    mutant = MUTANTS[name]

    assert mutant.promise in NAMES
    assert mutant.kept is None or mutant.kept in kept_names()
    for test in mutant.tests:
        file, _, function = test.partition("[")[0].rpartition("::")
        assert function in functions(ROOT / file)


def test_a_mutant_that_no_longer_fits_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "patches").mkdir()
    (tmp_path / "a.sql").write_text("one two two")
    (tmp_path / "patches" / "m.toml").write_text(
        'breaks = "b"\npromise = "at_rest"\nseeds = [1]\n'
        '[[changes]]\nfile = "a.sql"\nold = "one"\nnew = ""\n'
        '[[changes]]\nfile = "a.sql"\nold = "two"\nnew = ""\n'
    )
    mutant = load_all(tmp_path / "patches")["m"]

    with pytest.raises(BadPatch, match="2 times instead of once"):
        apply(mutant, tmp_path)

    assert (tmp_path / "a.sql").read_text() == "one two two"


@pytest.mark.parametrize(
    "text",
    [
        "no toml",
        'breaks = "b"\npromise = "p"\nchanges = []\n',
        'breaks = "b"\npromise = "p"\nseeds = [1]\nchanges = []\nlane = "other"\n',
        'breaks = "b"\npromise = "p"\nseeds = [1]\nchanges = []\nunknown = 1\n',
        'breaks = "b"\nseeds = [1]\nchanges = []\n',
        'breaks = "b"\npromise = "p"\nseeds = [1]\n[[changes]]\nfile = "a"\nold = "x"\nnew = "x"\n',
    ],
)
def test_a_file_that_is_no_mutant_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.toml").write_text(text)

    with pytest.raises(BadPatch, match=r"m\.toml|changes nothing"):
        load_all(tmp_path)


def test_every_file_of_the_folder_is_a_mutant() -> None:
    assert {path.stem for path in PATCHES.iterdir()} == set(MUTANTS)


def test_only_an_assertion_is_a_no() -> None:
    assert is_assertion(AssertionError())
    assert is_assertion(pytest.fail.Exception("DID NOT RAISE"))
    assert is_assertion(ExceptionGroup("g", [AssertionError(), AssertionError()]))
    assert not is_assertion(ExceptionGroup("g", [AssertionError(), OSError()]))
    assert not is_assertion(pytest.fail.Exception("Timeout (>120.0s) from pytest-timeout."))
    assert not is_assertion(TimeoutError())


SMALL_TESTS = {
    "green": ("def test_it(): pass", (False, True)),
    "red": ("def test_it(): assert 1 == 2", (True, False)),
    "error": ("def test_it(): 1 / 0", (False, False)),
    "import": ("import nothing_of_this_name\ndef test_it(): assert False", (False, False)),
    "set-up": (
        "import pytest\n@pytest.fixture\ndef part(): assert False\ndef test_it(part): pass",
        (False, False),
    ),
    "elsewhere": ("def test_other(): assert False", (False, False)),
    "skipped": (
        "import pytest\n@pytest.mark.skip\ndef test_it(): assert False",
        (False, False),
    ),
}


@pytest.mark.parametrize("kind", sorted(SMALL_TESTS))
def test_a_trial_is_red_by_the_assertion_of_the_named_test_alone(kind: str) -> None:
    text, expected = SMALL_TESTS[kind]
    with copied() as tree:
        (tree / "tests" / "test_small.py").write_text(text)
        finding = run_tests(SMALL.tests, tree, server=None, within_s=60)

    assert (finding.is_red, finding.is_green) == expected, finding.text


def test_a_trial_that_takes_too_long_has_caught_nothing() -> None:
    with copied() as tree:
        (tree / "tests" / "test_small.py").write_text("import time\ndef test_it(): time.sleep(60)")
        finding = run_tests(SMALL.tests, tree, server=None, within_s=8)

    assert (finding.is_red, finding.is_green) == (False, False)


def test_of_two_trials_both_must_be_red() -> None:
    red = Finding(is_red=True, is_green=False, text="no", seconds=1)
    green = Finding(is_red=False, is_green=True, text="passed", seconds=2)

    assert red.and_then(red) == Finding(is_red=True, is_green=False, text="no", seconds=2)
    assert red.and_then(green) == Finding(is_red=False, is_green=True, text="passed", seconds=3)
    assert green.and_then(red) == red.and_then(green)
