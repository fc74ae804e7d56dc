"""Estimates tokens where the provider sent none, and what an answer cost."""

from dataclasses import dataclass

from schemas.usage import Usage

BYTES_PER_TOKEN = 4
"""Of English text in current tokenizers; an estimate is marked as one wherever it is stored."""

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens; None where nobody told us."""

    input_usd: float | None = None
    cached_input_usd: float | None = None
    output_usd: float | None = None


def estimated(*, request_bytes: int, answer_bytes: int) -> Usage:
    """Usage of a call whose provider reported none; never zero for the request that was sent."""
    return Usage(input=max(1, _tokens(request_bytes)), output=_tokens(answer_bytes), estimated=True)


def priced(usage: Usage, price: Price) -> Usage:
    """The usage with its cost; without one where a price that it needs is unknown."""
    if price.input_usd is None or price.output_usd is None:
        return usage
    cached_usd = price.input_usd if price.cached_input_usd is None else price.cached_input_usd
    cost_usd = (
        (usage.input - usage.cached) * price.input_usd
        + usage.cached * cached_usd
        + usage.output * price.output_usd
    ) / _MILLION
    return usage.model_copy(update={"cost_usd": round(cost_usd, 9)})


def _tokens(size_bytes: int) -> int:
    return -(-size_bytes // BYTES_PER_TOKEN)
