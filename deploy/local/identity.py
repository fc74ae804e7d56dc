"""Which process a recorded id means: an id alone may have been given to another process since."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STATE, _PARENT, _START = 0, 1, 19  # fields of proc_pid_stat(5) counted from after the name


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name stands in parentheses and may itself hold spaces and parentheses.
    return text[text.rindex(")") + 2 :].split()


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone or only a zombie."""
    fields = _stat_fields(pid)
    if fields is None or fields[_STATE] in "ZX":
        return None
    return int(fields[_START])


def children_of(pid: int) -> list[int]:
    """Ids of the processes whose parent is ``pid``, in no order."""
    found = []
    for other in _process_ids():
        fields = _stat_fields(other)
        if fields is not None and int(fields[_PARENT]) == pid:
            found.append(other)
    return found


def boot_id() -> str:
    """Differs after every boot of this machine; empty where the kernel does not tell."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _process_ids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def listener(port: int) -> str | None:
    """The process that listens on a TCP port, as ``name (process id)``; None if not seen.

    Another user's process is not seen without root, since its open files are private.
    """
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not inodes:
        return None
    for pid in _process_ids():
        if _open_sockets(pid) & inodes:
            name = (_PROC / str(pid) / "comm").read_text().strip()
            return f"{name} (process {pid})"
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    suffix, listen_state = f":{port:04X}", "0A"
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[1].endswith(suffix) and fields[3] == listen_state:
                yield fields[9]


def _open_sockets(pid: int) -> set[str]:
    links = set()
    try:
        for entry in (_PROC / str(pid) / "fd").iterdir():
            links.add(str(entry.readlink()))
    except OSError:
        return links  # ended, or not ours to see
    return links


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that can be recognised later, even after its id was given to another one."""

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """The identity of a living process; None if it is gone."""
        ticks = start_ticks(pid)
        return None if ticks is None else cls(pid, ticks)

    def is_running(self) -> bool:
        """Whether that very process is alive. Meaningful within one boot only."""
        return start_ticks(self.pid) == self.started_ticks
