"""Named points at which a test may kill the process; one dictionary look-up when they are off.

``TURNWIRE_FAILPOINT=name:nth:action`` arms one point: the ``nth`` time (from 1) it is reached the
process acts. ``exit`` is SIGKILL, so nothing is flushed, closed or said: the worst case. ``hang``
stops the process (SIGSTOP) until somebody continues it.
"""

import os
import signal

FAIL_POINTS = frozenset(
    {
        "gateway.after_publish",
        "ingestion.after_accept_commit",
        "ingestion.relay.after_publish",
        "ingestion.before_answer_commit",
        "ingestion.after_answer_commit",
        "context.before_commit",
        "context.after_commit",
        "context_assembly.relay.after_publish",
        "llm.after_accept",
        "llm.after_request_sent",
        "llm.after_delta",
        "llm.after_last_delta",
        "llm.after_final_commit",
        "llm_gateway.relay.after_publish",
    }
)

_SIGNALS = {"exit": signal.SIGKILL, "hang": signal.SIGSTOP}


class _Armed:
    """The one point this process was started with."""

    def __init__(self, specification: str) -> None:
        name, _, rest = specification.partition(":")
        nth, _, action = rest.partition(":")
        if name not in FAIL_POINTS or not nth.isdecimal() or action not in _SIGNALS:
            known = ", ".join(sorted(FAIL_POINTS))
            msg = f"TURNWIRE_FAILPOINT must be name:nth:exit|hang with a name of: {known}"
            raise ValueError(msg)
        self.name = name
        self.left = int(nth)
        self.signal = _SIGNALS[action]


_ARMED = _Armed(value) if (value := os.environ.get("TURNWIRE_FAILPOINT")) else None


def failpoint(name: str) -> None:
    """Act if this process was started with this point armed; otherwise do nothing."""
    if _ARMED is None or _ARMED.name != name:
        return
    _ARMED.left -= 1
    if _ARMED.left == 0:
        os.kill(os.getpid(), _ARMED.signal)
