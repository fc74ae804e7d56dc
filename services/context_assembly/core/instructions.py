"""What the operator tells every model: the system policy and the instructions of a workspace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.prompt_plan import InstructionKind, InstructionScope


@dataclass(frozen=True, slots=True)
class SystemPolicy:
    """The settings' fixed text at the head of every prompt; empty text means no such block."""

    text: str
    version: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """A text that was set for a tenant or a conversation, in the version that is current.

    Attributes:
        text: Empty takes it back: nothing is shown, or the settings' text for a system policy.
    """

    kind: InstructionKind
    scope: InstructionScope
    version: str
    text: str

    @property
    def block_id(self) -> str:
        """Its name in a plan."""
        if self.scope == "settings":
            return f"policy:{self.version}"
        return f"{self.kind}:{self.scope}:{self.version}"

    @property
    def source(self) -> str:
        """Where its text lives."""
        return "settings" if self.scope == "settings" else "context_assembly.instructions"


def shown_instructions(
    policy: SystemPolicy, instructions: Sequence[Instruction]
) -> tuple[Instruction, ...]:
    """The texts that head a prompt, in its order.

    A tenant's system policy takes the place of the settings'. The workspace's instructions are the
    tenant's, then the conversation's. The order given means nothing.
    """
    found = {(one.kind, one.scope): one for one in instructions if one.text}
    head = found.get(("system_policy", "tenant"))
    if head is None and policy.text:
        head = Instruction("system_policy", "settings", policy.version, policy.text)
    wanted = (head, found.get(("workspace", "tenant")), found.get(("workspace", "conversation")))
    return tuple(one for one in wanted if one is not None)
