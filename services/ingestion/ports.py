"""What ingestion needs of the outside, beside its database; tests hand in twins."""

from collections.abc import Sequence
from typing import Protocol

from libs.outbox import OutboxMessage


class HandOver(Protocol):
    """The fast way of committed outbox rows to Kafka; ``libs.outbox.Relay`` is one.

    Losing what was handed over loses nothing: the relay's sweep finds the rows.
    """

    def hand_over(self, messages: Sequence[OutboxMessage], ids: Sequence[int]) -> None:
        """Send rows that were just committed; never blocks and cannot fail."""
        ...

    async def let_pass(self) -> None:
        """Let them reach the wire before something less urgent runs."""
        ...

    def take_acknowledged(self) -> list[int]:
        """Ids of rows that the broker has; the caller's transaction deletes them."""
        ...


class Tokens(Protocol):
    """Counts the tokens of messages the way their models do."""

    def count(self, text: str, model: str | None) -> tuple[str, int]:
        """Name of the tokenizer and number of tokens.

        Args:
            model: The model that will answer; None for the default one.
        """
        ...


class Models(Tokens, Protocol):
    """What is known of models: how they count tokens, and what they can do."""

    def can_continue(self, model: str | None) -> bool:
        """Whether the model goes on from a text of its own, as its provider declares.

        Args:
            model: None for the default one.
        """
        ...
