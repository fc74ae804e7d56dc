"""What the operating system knows about processes and the machine, read from /proc."""

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
FSYNC_WRITES = 200
FSYNC_BLOCK = b"\0" * 4096
MIB = 1024.0
SPEED_STEPS = 1_000_000
SPEED_TRIES = 3


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds since their start: of each process with its children, and of the machine."""

    by_label: Mapping[str, float]
    machine_s: float

    def since(self, earlier: "CpuReading") -> Mapping[str, float]:
        """Seconds used between two readings."""
        return {label: s - earlier.by_label[label] for label, s in self.by_label.items()}

    def foreign_since(self, earlier: "CpuReading") -> float:
        """Seconds that processes not measured here used in between."""
        return max(0.0, self.machine_s - earlier.machine_s - sum(self.since(earlier).values()))


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB of a process with its children.

    Attributes:
        pss: Counts shared pages once over all.
        own: Only pages that nobody shares; what a leak adds to.
    """

    rss: float
    pss: float
    own: float


@dataclass(frozen=True, slots=True)
class Fsync:
    """Milliseconds of one 4 KiB write with fdatasync in the data folder."""

    p50: float
    p99: float


def read_cpu(pids: Mapping[str, int]) -> CpuReading:
    """CPU so far of labelled processes; a child that has ended counts for its parent."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    user, nice, system, _idle, _iowait, irq, softirq = (int(f) for f in fields[1:8])
    busy = (user + nice + system + irq + softirq) / TICKS_PER_S
    return CpuReading({label: _cpu_s(pid) for label, pid in pids.items()}, busy)


def _cpu_s(pid: int) -> float:
    # Fields after the command's name: 11 utime, 12 stime, 13 and 14 those of reaped children.
    # Our own reaped children were servers of another kind, so for this process they do not count.
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = sum(int(stat[n]) for n in ((11, 12) if pid == os.getpid() else (11, 12, 13, 14)))
    children = 0.0 if pid == os.getpid() else sum(map(_child_cpu_s, children_of(pid)))
    return own / TICKS_PER_S + children


def _child_cpu_s(pid: int) -> float:
    try:
        return _cpu_s(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it ended meanwhile; its parent's next reading has its time


def children_of(pid: int) -> list[int]:
    """Processes started by ``pid`` that still run."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += [int(child) for child in path.read_text().split()]
    return found


def read_memory(pid: int) -> Memory:
    """Memory of a process and its children; our own children are measured by themselves."""
    kib = {"Rss": 0, "Pss": 0, "Private_Clean": 0, "Private_Dirty": 0}
    for one in (pid, *(() if pid == os.getpid() else children_of(pid))):
        with suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in kib:
                    kib[name] += int(value.split()[0])
    own = kib["Private_Clean"] + kib["Private_Dirty"]
    return Memory(kib["Rss"] / MIB, kib["Pss"] / MIB, own / MIB)


def measure_fsync(folder: Path) -> Fsync:
    """Write and sync small blocks where the stores keep their data."""
    path = folder / "fsync-probe"
    times_ms: list[float] = []
    with path.open("wb", buffering=0) as probe:
        for _ in range(FSYNC_WRITES):
            began = perf_counter()
            probe.write(FSYNC_BLOCK)
            os.fdatasync(probe.fileno())
            times_ms.append((perf_counter() - began) * 1000)
    path.unlink()
    return Fsync(percentile(times_ms, 50), percentile(times_ms, 99))


def measure_speed() -> float:
    """CPU milliseconds of a fixed piece of Python: shared machines are not always equally fast."""
    took_ms = []
    for _ in range(SPEED_TRIES):
        began = process_time()
        sum(n * n % 7 for n in range(SPEED_STEPS))
        took_ms.append((process_time() - began) * 1000)
    return min(took_ms)


def percentile(values: list[float], percent: float) -> float:
    """The value below which ``percent`` of the values lie; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def describe() -> str:
    """Processor, cores, memory, kernel and Python of this machine."""
    cpu = platform.processor() or platform.machine()
    with suppress(FileNotFoundError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    return (
        f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def commit() -> str:
    """The checked-out commit, with a plus where files differ from it."""
    root, git = Path(__file__).parents[2], shutil.which("git")
    if git is None:
        return "unknown"
    try:
        head = subprocess.run(
            (git, "rev-parse", "--short=12", "HEAD"),
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()
        changed = subprocess.run(
            (git, "status", "--porcelain"),
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return head + ("+" if changed else "")
