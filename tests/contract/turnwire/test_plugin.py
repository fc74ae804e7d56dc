"""The pytest plugin in a session of its own, as its users run it."""

import asyncio
import os
import sys
from pathlib import Path

from tests.rig.gateway import gateway_rig

ROOT = Path(__file__).parents[3]
THEIR_TEST = """
def test_theirs(turnwire_client, turnwire_url):
    assert turnwire_url.startswith("http")
    made = turnwire_client.create_conversation(title="theirs")
    assert [c.id for c in turnwire_client.conversations()] == [made.id]
"""


async def outcome(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Run pytest over their test; its exit code and words."""
    (folder / "test_theirs.py").write_text(THEIR_TEST)
    known = {k: v for k, v in os.environ.items() if not k.startswith(("TURNWIRE_", "PYTEST_"))}
    environment = {**known, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    options = ("-q", "-p", "turnwire.testing.plugin", "-p", "no:cacheprovider", *arguments)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", *options, str(folder)),
        cwd=folder,
        env={**environment, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_the_fixtures_reach_the_server_that_is_named(tmp_path: Path) -> None:
    async with gateway_rig() as rig:
        by_option = await outcome(tmp_path, "--turnwire-url", rig.url, TURNWIRE_API_KEY=rig.key)
        assert by_option[0] == 0, by_option[1]
        assert "1 passed" in by_option[1]


async def test_without_a_server_a_test_fails_and_says_what_to_set(tmp_path: Path) -> None:
    code, said = await outcome(tmp_path)

    assert code == 1
    assert "give --turnwire-url or set TURNWIRE_URL" in said


async def test_without_a_key_a_test_fails_and_says_what_to_set(tmp_path: Path) -> None:
    code, said = await outcome(tmp_path, TURNWIRE_URL="http://127.0.0.1:9")

    assert code == 1
    assert "set TURNWIRE_API_KEY" in said
