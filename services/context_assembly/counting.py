"""Finds the token counts that ingestion did not make: each text is counted once per tokenizer."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

from libs.tokens import count
from services.context_assembly.ports import HashKey, TextKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from services.context_assembly.ports import HistoryReader, TokenCounts

COUNT_IN_TRANSACTION_CHARACTERS = 16_384
"""A text up to this length takes under 0.3 ms to count, little enough while locks are held."""


class Pause(Protocol):
    """Lets other tasks run between two counts; ``Clock.sleep`` is one."""

    async def __call__(self, delay_s: float) -> None:
        """Wait that long; 0 only yields."""


class Counter:
    """Counts texts outside any transaction and remembers the result by the text's hash."""

    def __init__(self, reader: HistoryReader, counts: TokenCounts, *, pause: Pause) -> None:
        self._reader = reader
        self._counts = counts
        self._pause = pause

    async def count(
        self, keys: Sequence[TextKey], tokenizers: Mapping[TextKey, str]
    ) -> dict[TextKey, int]:
        """Tokens of the texts of these messages, each in its own tokenizer.

        A message whose text is gone counts 0: rendering it will find that out and plan again.
        """
        texts = await self._reader.texts(keys)
        hashes = {
            key: HashKey(key.tenant_id, hashlib.sha256(text.encode()).digest(), tokenizers[key])
            for key, text in texts.items()
        }
        known = await self._counts.known(list(dict.fromkeys(hashes.values())))
        fresh: dict[HashKey, int] = {}
        for key, text in texts.items():
            hashed = hashes[key]
            if hashed not in known:
                known[hashed] = fresh[hashed] = count(text, hashed.tokenizer)
                await self._pause(0)
        if fresh:
            await self._counts.remember(fresh)
        return {key: known[hashes[key]] if key in hashes else 0 for key in keys}
