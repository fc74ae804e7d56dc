import subprocess
import sys

SCRIPT = """
import gc
from libs.garbage import YOUNG_OBJECTS, collect_rarely
collect_rarely()
assert gc.get_freeze_count() > 1000, gc.get_freeze_count()
assert gc.get_threshold()[0] == YOUNG_OBJECTS
assert gc.isenabled()
class Ring: pass
a, b = Ring(), Ring()
a.other, b.other = b, a
del a, b
assert gc.collect() >= 2
"""


def test_imports_are_frozen_and_later_cycles_are_still_collected() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True, timeout=30
    )
    assert run.returncode == 0, run.stderr
