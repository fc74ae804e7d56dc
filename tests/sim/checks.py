"""What only a run that sees everything can check, beside the promises of ``tests.rig.checker``."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tests.rig import cancels
from tests.rig.ledger import Act
from tests.rig.verdict import Verdict
from tests.sim.faults import Fault
from tests.sim.house import LIMITS, Death
from tests.sim.process import EPOCH, wall_time

RECOVERED_WITHIN_S = LIMITS.lease_s + LIMITS.sweep_s + 2.0
"""From a worker's death until its attempt is over: the lease, a sweep, and the write."""

CANCELLED_WITHIN_S = 5.0
"""From the answer that a turn will stop until it has ended, whoever had to end it."""

UNDISTURBED_S = 21.0
"""No fault lasts longer: one that struck earlier disturbs no recovery."""

OVER = """
select extract(epoch from min(x.at)) as at from (
  select a.ended_at as at from llm_gateway.attempts a
   where a.step_id = %(step_id)s and a.attempt = %(attempt)s
  union all
  select t.ended_at from ingestion.turns t
    join context_assembly.steps s on s.turn_id = t.id and s.tenant_id = t.tenant_id
   where s.step_id = %(step_id)s) as x
"""
KNOWN = "select from context_assembly.steps where step_id = %s"


def check_recovery(
    connection: Any,
    deaths: Sequence[Death],
    strikes: Sequence[tuple[float, Fault]],
    verdict: Verdict,
) -> None:
    """What a killed worker held is over soon, wherever nothing else went wrong meanwhile."""
    for death in deaths:
        others = [
            fault
            for at_s, fault in strikes
            if abs(at_s - death.at_s) < UNDISTURBED_S and abs(at_s - death.at_s) > 0
        ]
        if others:
            continue
        if connection.execute(KNOWN, [death.step_id]).fetchone() is None:
            continue  # its conversation was purged
        found = connection.execute(
            OVER, {"step_id": death.step_id, "attempt": death.attempt}
        ).fetchone()
        died = wall_time(death.at_s).timestamp()
        took_s = None if found["at"] is None else float(found["at"]) - died
        verdict.check(
            "recovery_in_time",
            holds=took_s is not None and took_s <= RECOVERED_WITHIN_S,
            otherwise=f"attempt {death.attempt} of step {death.step_id} was over {took_s} s after "
            "its worker's death",
        )


def check_cancels(
    connection: Any,
    acts: Sequence[Act],
    strikes: Sequence[tuple[float, Fault]],
    verdict: Verdict,
) -> None:
    """A turn whose cancel was accepted ends soon, wherever nothing else goes wrong meanwhile."""

    def is_disturbed(done_at: datetime) -> bool:
        at_s = (done_at - EPOCH).total_seconds()
        return any(-UNDISTURBED_S < struck_s - at_s < CANCELLED_WITHIN_S for struck_s, _ in strikes)

    cancels.check_cancels(
        connection, acts, verdict, within_s=CANCELLED_WITHIN_S, is_disturbed=is_disturbed
    )
