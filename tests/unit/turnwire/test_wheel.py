"""What is published: the client and its assertions; no service, no needs of one, no command."""

import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The text of every file in the wheel, by its name."""
    folder = tmp_path_factory.mktemp("wheel")
    [path] = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(path) as packed:
        return {name: packed.read(name).decode() for name in packed.namelist()}


def one(wheel: dict[str, str], ending: str) -> str:
    [text] = [text for name, text in wheel.items() if name.endswith(ending)]
    return text


def test_a_published_wheel_holds_the_client_alone(wheel: dict[str, str]) -> None:
    own = {name for name in wheel if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in own} == {"turnwire"}
    assert own >= {"turnwire/py.typed", "turnwire/client.py", "turnwire/testing/plugin.py"}
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "turnwire").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert own == sources


def test_who_installs_it_gets_httpx_and_nothing_else_of_ours(wheel: dict[str, str]) -> None:
    needed = Parser().parsestr(one(wheel, "METADATA")).get_all("Requires-Dist")
    assert [name.partition(">")[0] for name in needed or ()] == ["httpx"]


def test_it_brings_the_pytest_plugin_and_no_command_that_could_not_run(
    wheel: dict[str, str],
) -> None:
    assert one(wheel, "entry_points.txt").split() == [
        "[pytest11]",
        *("turnwire", "=", "turnwire.testing.plugin"),
    ]
    assert not [name for name in wheel if "/scripts/" in name]
