"""The peer's own Python environment, made when somebody asks for it."""

import asyncio
import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
FOLDER = ROOT / ".bench-peer"
STAMP = FOLDER / ".requirements"
BOUND_S = 300.0


async def peer_python() -> Path:
    """The interpreter of the environment, which is made or renewed where it has to be."""
    python = FOLDER / "bin" / "python"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if python.exists() and STAMP.exists() and STAMP.read_text() == wanted:
        return python
    sys.stderr.write(f"Setting up {FOLDER.name} from {REQUIREMENTS.relative_to(ROOT)}\n")
    await _run(sys.executable, "-m", "venv", "--clear", str(FOLDER))
    quiet = ("--quiet", "--disable-pip-version-check")
    await _run(str(python), "-m", "pip", "install", *quiet, "-r", str(REQUIREMENTS))
    (FOLDER / ".gitignore").write_text("*\n")
    STAMP.write_text(wanted)
    return python


async def _run(*command: str) -> None:
    child = await asyncio.create_subprocess_exec(*command)
    try:
        async with asyncio.timeout(BOUND_S):
            code = await child.wait()
    except TimeoutError:
        child.kill()
        raise
    if code != 0:
        msg = f"{' '.join(command[:4])} … ended with code {code}; its output is above"
        raise RuntimeError(msg)
