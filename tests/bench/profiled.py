"""Runs a service and counts where its CPU time goes: ``TURNWIRE_BENCH_PROFILED=services.x``."""

import atexit
import os
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

EVERY_S = 0.002
SHOWN = 60


class Profile:
    """Samples the main thread's stack after every ``EVERY_S`` of CPU time."""

    def __init__(self) -> None:
        self.own: Counter[str] = Counter()
        self.within: Counter[str] = Counter()
        self.samples = 0

    def sample(self, _number: int, frame: FrameType | None) -> None:
        """Signal handler: count the running function and everything that called it."""
        self.samples += 1
        seen: set[str] = set()
        is_top = True
        while frame is not None:
            code = frame.f_code
            name = f"{code.co_qualname} {_short(code.co_filename)}:{code.co_firstlineno}"
            if is_top:
                self.own[name] += 1
                is_top = False
            seen.add(name)
            frame = frame.f_back
        self.within.update(seen)

    def clear(self, _number: int, _frame: FrameType | None) -> None:
        """Forget what was counted, for instance while warming up."""
        self.own.clear()
        self.within.clear()
        self.samples = 0

    def write(self, path: Path) -> None:
        """Write both counts, largest first."""
        lines = [f"{self.samples} samples of {EVERY_S * 1000:g} ms"]
        for title, counts in (("own", self.own), ("within", self.within)):
            lines += ["", title]
            for name, count in counts.most_common(SHOWN):
                lines.append(f"{100 * count / max(1, self.samples):6.2f} %  {name}")
        path.write_text("\n".join(lines) + "\n")


def _short(path: str) -> str:
    return "/".join(path.split("/")[-3:])


def main() -> None:
    """Run the service named in the environment until it ends."""
    profile = Profile()
    signal.signal(signal.SIGPROF, profile.sample)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.signal(signal.SIGUSR2, profile.clear)
    signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
    atexit.register(profile.write, Path(os.environ["TURNWIRE_BENCH_PROFILE_PATH"]))
    module = os.environ["TURNWIRE_BENCH_PROFILED"]
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
