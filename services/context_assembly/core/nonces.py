"""Chooses the nonce of the frames around data: no text of the prompt holds it in any guise."""

from __future__ import annotations

import hashlib
import unicodedata
from typing import TYPE_CHECKING, Final

from libs.errors import Retryable
from schemas.prompt_plan import NONCE_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

MAX_NONCES: Final = 1_000
"""Tries to find a nonce that no text holds. A text of 1 MB holds a given one by chance with a
probability of 1e-13, and a text that holds a thousand was written to."""

_NO_MARK: Final = (*range(9), 11, 12, *range(14, 32), 127, 0x115F, 0x1160)
"""Control characters but tab and line ends, and the fillers of Hangul."""

# Latin, Greek, Cyrillic and Armenian letters that look like hexadecimal digits and that no normal
# form folds.
_LOOKALIKES: Final = str.maketrans(
    {
        **dict.fromkeys(_NO_MARK),
        **dict.fromkeys("o\u043e\u03bf\u0585\u00f8", "0"),
        **dict.fromkeys("l\u0456\u03b9\u0131\u01c0\u04cf", "1"),
        **dict.fromkeys("\u0437\u0292", "3"),
        **dict.fromkeys("\u0455", "5"),
        **dict.fromkeys("\u0431", "6"),
        **dict.fromkeys("\u0430\u0251\u03b1", "a"),
        **dict.fromkeys("\u044c\u0185\u0432", "b"),
        **dict.fromkeys("\u0441\u03f2\u1d04", "c"),
        **dict.fromkeys("\u0501\u0257", "d"),
        **dict.fromkeys("\u0435\u0454\u04bd", "e"),
        **dict.fromkeys("\u0192\u03dd", "f"),
    }
)


class NoNonce(Retryable):
    """Every nonce that was tried stands in a text; nobody but an attacker writes such a text."""

    code = "context.no_nonce"


def skeleton(text: str) -> str:
    """A text as a reader sees it who overlooks what is easily overlooked.

    Wide, superscript and mathematical digits become plain ones, accents and characters without
    width go, capitals become small, and look-alikes of hexadecimal digits become these digits.
    """
    folded = text.lower()
    if not folded.isascii():
        # Lower case after the decomposition as well: what it makes of a symbol may be a capital.
        folded = "".join(
            character
            for character in unicodedata.normalize("NFKD", folded).lower()
            if unicodedata.category(character) not in _UNSEEN
        )
    return folded.translate(_LOOKALIKES)


_UNSEEN: Final = frozenset({"Cf", "Mn", "Me"})


def holding(nonce: str, texts: Iterable[str]) -> int:
    """How many of these texts hold something that looks like the nonce."""
    wanted = skeleton(nonce)
    return sum(wanted in skeleton(text) for text in texts)


def nonce_for(step_id: UUID, texts: Iterable[str]) -> str:
    """The first nonce of a step that stands in none of these texts: the same in any process.

    Whoever writes a text can work the step's nonces out; that a nonce was looked for in every text
    is what makes a frame impossible to close from inside, not that it is secret.

    Raises:
        NoNonce: A text holds all of the first thousand.
    """
    seen = [skeleton(text) for text in texts]
    for attempt in range(MAX_NONCES):
        digest = hashlib.sha256(step_id.bytes + attempt.to_bytes(4, "big")).hexdigest()
        nonce = digest[:NONCE_LENGTH]
        if not any(nonce in text for text in seen):
            return nonce
    msg = f"a text of step {step_id} holds {MAX_NONCES} nonces; it is not sent"
    raise NoNonce(msg)
