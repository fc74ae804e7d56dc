"""What only a run that sees everything can check, beside the promises of ``tests.rig.checker``."""

import re
from collections.abc import Sequence
from typing import Any

from tests.rig.checker import Verdict
from tests.rig.ledger import Ledger

CANARY = re.compile(r"canary\d+")


def check_prompts(
    payloads: Sequence[dict[str, Any]], tenants: Sequence[str], verdict: Verdict
) -> None:
    """Every prompt: one tenant's text only, the asked message once, and last."""
    for payload in payloads:
        messages = payload["messages"]
        found = {name for m in messages for name in CANARY.findall(m["content"])}
        verdict.check(
            "tenant_isolation",
            holds=len(found) == 1 and found <= set(tenants),
            otherwise=f"one prompt shows the tenants {sorted(found)}",
        )
        asked = messages[-1]
        users = [m["content"] for m in messages if m["role"] == "user"]
        verdict.check(
            "current_turn_once_in_plan",
            holds=asked["role"] == "user" and users.count(asked["content"]) == 1,
            otherwise=f"a prompt ends with {asked['role']} and asks {users}",
        )


def check_isolation(ledger: Ledger, tenant: str, verdict: Verdict) -> None:
    """Nothing that a client got names another tenant."""
    for stream in ledger.streams():
        found = {name for e in stream.events for name in CANARY.findall(e.data.decode())}
        verdict.check(
            "tenant_isolation",
            holds=found <= {tenant},
            otherwise=f"a stream of {tenant} shows {sorted(found)}",
        )
