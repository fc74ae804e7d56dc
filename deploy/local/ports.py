"""Choosing ports on 127.0.0.1, and saying who holds one that is taken."""

import random
import socket
from collections import deque
from collections.abc import Collection

from deploy.local.errors import PortBusy
from deploy.local.identity import listener

# Below the kernel's range for outgoing connections (from 32768): a server that is killed finds
# its port free again, since no client of anything can have been given it meanwhile.
FIRST_PORT, LAST_PORT = 20_000, 32_000
MAX_TRIES = 200  # of 12,000 ports; a machine with that many listeners has another problem

# Ports of servers that may not listen yet: of forty chosen at random, two would be the same one in
# six of a hundred starts. Only the newest, so that a long run never uses the range up.
_given: deque[int] = deque(maxlen=2_000)


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def pick_port(*, avoid: Collection[int] = ()) -> int:
    """A free port of our range, chosen at random so that stacks side by side rarely meet.

    This process has not been given it before, as far as it remembers.

    Raises:
        PortBusy: If none of ``MAX_TRIES`` choices was free.
    """
    for _ in range(MAX_TRIES):
        port = random.randrange(FIRST_PORT, LAST_PORT)
        if port not in avoid and port not in _given and is_free(port):
            _given.append(port)
            return port
    raise PortBusy(
        f"No free port was found between {FIRST_PORT} and {LAST_PORT} on 127.0.0.1 in "
        f"{MAX_TRIES} tries. Stop some of the servers that listen there."
    )


def holder(port: int) -> str:
    """Who listens on a port, in words that fit into a sentence."""
    return listener(port) or "a process that cannot be seen from here"


def require_free(port: int, *, purpose: str, remedy: str = "") -> None:
    """Do nothing if a port is free.

    Args:
        purpose: What needs the port, such as ``"the chat page"``.
        remedy: What else the reader can do, a whole sentence.

    Raises:
        PortBusy: With the process that holds it.
    """
    if is_free(port):
        return
    who = holder(port)
    advice = f" {remedy}" if remedy else ""
    raise PortBusy(f"Port {port} is needed for {purpose} and taken by {who}. Stop it.{advice}")
