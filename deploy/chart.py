"""Renders the Helm chart with Helm itself, and keeps the renderings beside it.

``python -m deploy.chart`` writes ``deploy/helm/rendered``, with ``--check`` it only says what is
stale. Helm is taken from the path; where there is Go instead, it is built once, which takes some
minutes, and kept. Without either the renderings stay as they are: tests judge those, and the sums
of all files that were written beside them tell whether the chart has changed since.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "helm"
RENDERED = CHART / "rendered"
TOOLS = ROOT / ".tools"

HELM_MODULE: Final = "helm.sh/helm/v3/cmd/helm@v3.19.2"
KUBERNETES_VERSION: Final = "1.34.0"
"""What the renderings are made for, and whose schemas they are judged by."""

RENDERINGS: Final[dict[str, tuple[str, ...]]] = {
    "default.yaml": (),
    "full.yaml": ("--values", "deploy/helm/rendered/full.values.yaml"),
}
"""File -> what Helm is told beside the chart's own values."""

SUMS = RENDERED / "files.sha256"
"""The chart and its renderings as Helm last saw and left them, in the form of ``sha256sum``."""

BUILD_TIMEOUT_S = 1_200
RENDER_TIMEOUT_S = 60

NOT_READY = 3


def helm(*, may_build: bool) -> str | None:
    """Path of a Helm that can be run; None where there is none and none can be built.

    Args:
        may_build: Build it with Go if there is no other.
    """
    own = TOOLS / "helm"
    found = shutil.which("helm") or (str(own) if own.is_file() else None)
    if found is not None or not may_build:
        return found
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        return None
    TOOLS.mkdir(exist_ok=True)
    subprocess.run(  # noqa: S603 -- Go with a module that is pinned above
        [go, "install", HELM_MODULE],
        env={**os.environ, "GOBIN": str(TOOLS)},
        check=True,
        timeout=BUILD_TIMEOUT_S,
    )
    return str(own)


def rendered(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What Helm makes of the chart; its exit code says whether it accepts the values."""
    return subprocess.run(  # noqa: S603 -- Helm with our own chart
        [
            program,
            *("template", "turnwire", str(CHART), "--namespace", "turnwire"),
            *("--kube-version", KUBERNETES_VERSION, *arguments),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RENDER_TIMEOUT_S,
        check=False,
    )


def stale_renderings(program: str) -> dict[str, str]:
    """Text of every rendering that is not as it stands in the folder, by its file.

    Raises:
        ValueError: Helm refuses the chart or its values.
    """
    found: dict[str, str] = {}
    for name, arguments in RENDERINGS.items():
        made = rendered(program, *arguments)
        if made.returncode != 0:
            msg = f"helm refuses {name}: {made.stderr.strip()}"
            raise ValueError(msg)
        stored = RENDERED / name
        if not stored.is_file() or stored.read_text(encoding="utf-8") != made.stdout:
            found[name] = made.stdout
    return found


def sums() -> str:
    """A line for each file that makes a rendering, and for each rendering."""
    files = [CHART / "Chart.yaml", CHART / "values.yaml", CHART / "values.schema.json"]
    files += [*(CHART / "templates").iterdir(), *RENDERED.glob("*.yaml")]
    return "".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(CHART).as_posix()}\n"
        for file in sorted(files)
    )


def changed_since() -> list[str]:
    """Files that are not as they were when Helm last rendered the chart."""
    stored = set(SUMS.read_text(encoding="utf-8").splitlines())
    return sorted({line.partition("  ")[2] for line in stored ^ set(sums().splitlines())})


def main(arguments: Sequence[str]) -> int:
    """Write or check; returns the exit code."""
    is_check = "--check" in arguments
    if is_check and (changed := changed_since()):
        names = ", ".join(changed)
        sys.stderr.write(f"{names} changed since Helm rendered: run python -m deploy.chart\n")
        return 1
    program = helm(may_build=not is_check)
    if program is None:
        sys.stderr.write("There is no Helm here: the renderings were not made anew to compare.\n")
        return NOT_READY
    stale = stale_renderings(program)
    for name, text in stale.items():
        if is_check:
            sys.stderr.write(f"{name} is stale: run python -m deploy.chart\n")
        else:
            (RENDERED / name).write_text(text, encoding="utf-8")
            sys.stdout.write(f"deploy/helm/rendered/{name}\n")
    if not is_check:
        SUMS.write_text(sums(), encoding="utf-8")
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
