"""The model server's OpenMP runtime on a machine without one."""

import subprocess
import sys
from pathlib import Path

from deploy.local import openmp


def test_the_link_has_the_name_the_loader_looks_for_and_loads(tmp_path: Path) -> None:
    folder = openmp.linked_in(tmp_path / "openmp")
    again = openmp.linked_in(tmp_path / "openmp")

    assert again == folder
    script = (
        "import ctypes; ctypes.CDLL('libgomp.so.1').omp_get_max_threads(); "
        "print(open('/proc/self/maps').read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert (folder / openmp.LIBRARY).resolve().name in done.stdout
