"""Finds GCC's OpenMP runtime for the model server, on a machine that does not have it.

llama.cpp's wheel needs ``libgomp.so.1`` and does not bring it; a bare Debian has it only once a
compiler was installed. Another wheel carries a copy under a name of its own: a link with the name
the loader looks for, in a folder of ours, is enough.
"""

import ctypes
from importlib import metadata
from pathlib import Path

from deploy.local.errors import PartUnavailable

LIBRARY = "libgomp.so.1"
CARRIER = "pykdtree"
"""Any wheel with a bundled copy would do; this one has half a megabyte and is maintained."""


def machine_has_it() -> bool:
    """Whether the loader finds the runtime by itself."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def linked_in(folder: Path) -> Path:
    """Put a link to the wheel's copy into ``folder``, made if missing, and return the folder.

    Raises:
        PartUnavailable: The wheel is not installed, or has no copy any more.
    """
    copy = _bundled_copy()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    link = folder / LIBRARY
    link.unlink(missing_ok=True)
    link.symlink_to(copy)
    return folder


def _bundled_copy() -> Path:
    instead = (
        "Install the package libgomp1, or the dependency group `local`, or set LLM_BASE_URL to "
        "a server of your own."
    )
    try:
        files = metadata.files(CARRIER) or []
    except metadata.PackageNotFoundError:
        msg = f"The local model needs {LIBRARY}, which this machine does not have. {instead}"
        raise PartUnavailable(msg) from None
    for file in files:
        if file.name.startswith("libgomp-"):
            return Path(str(file.locate())).resolve()
    msg = f"The local model needs {LIBRARY}, and the wheel {CARRIER} has no copy of it. {instead}"
    raise PartUnavailable(msg)
