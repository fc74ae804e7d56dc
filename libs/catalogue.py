"""The catalogue of models: what each one can hold, how its tokens are counted, what it costs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from libs.errors import Terminal
from libs.tokens import TOKENIZERS

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PATH: Final = Path(__file__).resolve().parent.parent / "deploy" / "models.toml"
"""The catalogue that ships; the setting TURNWIRE_MODELS_FILE names another one."""


class CatalogueInvalid(Terminal):
    """The catalogue's file cannot be read or says something impossible."""

    code = "catalogue.invalid"


class Prices(BaseModel):
    """US dollars for a million tokens; ``None`` where nobody told us, then no cost is stated."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_usd: Annotated[float, Field(ge=0)] | None = None
    cached_input_usd: Annotated[float, Field(ge=0)] | None = None
    output_usd: Annotated[float, Field(ge=0)] | None = None


class ModelCard(BaseModel):
    """What the services must know about one model. All sizes are in tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="As the provider's API names it.")
    provider: Literal["openai_compatible", "scripted"] = Field(
        default="openai_compatible", description="Which kind of endpoint serves it."
    )
    window: int = Field(gt=0, description="Prompt and reply together.")
    max_output: int = Field(gt=0, description="The longest reply; also the reserve by default.")
    tokenizer: str = Field(description="An encoding of libs.tokens.")
    per_message_overhead: int = Field(
        ge=0, description="Tokens a message costs beside its text: role and separators."
    )
    reply_overhead: int = Field(
        ge=0, description="Tokens the chat template adds once: reply primer, built-in preamble."
    )
    safety_factor: float = Field(
        default=1.0,
        ge=1.0,
        le=4.0,
        description="The prompt's budget is divided by it where the tokenizer is not the model's.",
    )
    alternate_roles: bool = Field(
        default=False, description="The model refuses two user messages in a row."
    )
    prices: Prices = Prices()

    @field_validator("tokenizer")
    @classmethod
    def _tokenizer_is_known(cls, value: str) -> str:
        if value not in TOKENIZERS:
            msg = f"unknown tokenizer {value!r}: one of {', '.join(sorted(TOKENIZERS))}"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _reply_fits_the_window(self) -> Self:
        if self.max_output + self.reply_overhead >= self.window:
            msg = "max_output and reply_overhead leave no room in window for a prompt"
            raise ValueError(msg)
        return self


class Catalogue:
    """All model cards, the default one, and the card of a model that is not listed."""

    def __init__(
        self, cards: Mapping[str, ModelCard], *, default: str, unlisted: ModelCard
    ) -> None:
        self._cards = MappingProxyType(dict(cards))
        self._default = default
        self._unlisted = unlisted

    @classmethod
    def load(cls, path: Path = DEFAULT_PATH, *, default: str | None = None) -> Catalogue:
        """Read the catalogue's file.

        Args:
            path: A TOML file of the form of ``deploy/models.toml``.
            default: The model of turns that name none (``LLM_MODEL``); it need not be listed.

        Raises:
            CatalogueInvalid: Names the file, the key and what is wrong with it.
        """
        raw = _read(path)
        try:
            file = _File.model_validate(raw)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            key = ".".join(str(part) for part in first["loc"]) or "the file"
            raise CatalogueInvalid(f"{path}: {key}: {first['msg']}; correct it there") from error
        cards = {name: _named(card, name) for name, card in file.models.items()}
        return cls(cards, default=default or file.default, unlisted=_named(file.unlisted, "*"))

    def model(self, name: str) -> ModelCard:
        """The card of ``name``, or the conservative card for unlisted models under that name."""
        card = self._cards.get(name)
        return card if card is not None else _renamed(self._unlisted, name)

    @property
    def default(self) -> ModelCard:
        """The card of the model that answers turns which name none."""
        return self.model(self._default)

    @property
    def names(self) -> tuple[str, ...]:
        """The listed models, in alphabetical order."""
        return tuple(sorted(self._cards))


class _Card(ModelCard):
    """A card as the file spells it: its name is the table's key."""

    name: str = "*"


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    default: str = Field(min_length=1)
    unlisted: _Card
    models: dict[str, _Card] = Field(min_length=1)

    @model_validator(mode="after")
    def _default_is_listed(self) -> Self:
        if self.default not in self.models:
            msg = f"default names {self.default!r}, which has no table under models"
            raise ValueError(msg)
        return self


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise CatalogueInvalid(
            f"{path}: {reason}; name a readable file in TURNWIRE_MODELS_FILE"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CatalogueInvalid(f"{path}: not TOML: {error}") from error


def _named(card: _Card, name: str) -> ModelCard:
    return ModelCard.model_validate({**card.model_dump(), "name": name})


def _renamed(card: ModelCard, name: str) -> ModelCard:
    return card.model_copy(update={"name": name})
