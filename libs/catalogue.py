"""The catalogue of models: what each one can hold, how its tokens are counted, what it costs."""

from __future__ import annotations

import tomllib
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from libs.errors import MisconfiguredSettings
from libs.tokens import TOKENIZERS
from schemas.prompt_plan import SECTIONS, Section

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PATH: Final = Path(__file__).resolve().parent.parent / "deploy" / "models.toml"
"""The catalogue that ships; the setting TURNWIRE_MODELS_FILE names another one."""


UNLISTED: Final = "*"
"""Name of the card that stands for every model without a table."""


class CatalogueInvalid(MisconfiguredSettings):
    """The catalogue's file cannot be read or says something impossible."""

    code = "catalogue.invalid"


class Prices(BaseModel):
    """US dollars for a million tokens; ``None`` where nobody told us, then no cost is stated."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_usd: Annotated[float, Field(ge=0)] | None = None
    cached_input_usd: Annotated[float, Field(ge=0)] | None = None
    output_usd: Annotated[float, Field(ge=0)] | None = None


class SectionCard(BaseModel):
    """How much of a prompt one section may have, in tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    floor: int = Field(default=0, ge=0, description="Kept free for it while others are filled.")
    ceiling: int | None = Field(
        default=None, ge=0, description="The most it may use; left out: what is left."
    )
    priority: int = Field(
        default=0, ge=0, description="A lower number is filled earlier, of those that give way."
    )

    @model_validator(mode="after")
    def _floor_is_below_the_ceiling(self) -> Self:
        if self.ceiling is not None and self.floor > self.ceiling:
            msg = f"floor {self.floor} is above ceiling {self.ceiling}"
            raise ValueError(msg)
        return self


_GIVES_WAY: Final[tuple[Section, ...]] = ("summary", "memory", "retrieved", "tools", "history")

_NEVER_TRIMMED: Final[tuple[Section, ...]] = ("system", "workspace")
"""What the operator says is shown whole, as long as its ceiling allows."""


def _default_sections() -> dict[Section, SectionCard]:
    """Without a word in the file: no floor, no ceiling, history filled last."""
    return {
        section: SectionCard(priority=_GIVES_WAY.index(section) + 1 if section in _GIVES_WAY else 0)
        for section in SECTIONS
    }


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
    can_continue: bool = Field(
        default=False,
        description="The model goes on from an unfinished answer of its own at the prompt's end.",
    )
    image_tokens: int = Field(
        default=1_600, ge=1, le=3_000, description="An image whose dimensions nobody can read."
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

    @model_validator(mode="after")
    def _continuing_needs_two_answers_in_a_row(self) -> Self:
        if self.can_continue and self.alternate_roles:
            msg = "can_continue ends a prompt with an answer, which alternate_roles rules out"
            raise ValueError(msg)
        return self


class Catalogue:
    """All model cards, the default one, and the card of a model that is not listed."""

    def __init__(
        self,
        cards: Mapping[str, ModelCard],
        *,
        default: str,
        unlisted: ModelCard,
        sections: Mapping[str, Mapping[Section, SectionCard]] | None = None,
    ) -> None:
        self._sections = MappingProxyType(dict(sections or {}))
        self._any_sections = MappingProxyType(_default_sections())
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
        unlisted = _named(file.unlisted, UNLISTED)
        sections = {name: _shares(file, card) for name, card in file.models.items()}
        sections[UNLISTED] = _shares(file, file.unlisted)
        for card in (*cards.values(), unlisted):
            _check_budgets(path, card, sections[card.name])
        return cls(cards, default=default or file.default, unlisted=unlisted, sections=sections)

    def model(self, name: str) -> ModelCard:
        """The card of ``name``, or the conservative card for unlisted models under that name."""
        card = self._cards.get(name)
        return card if card is not None else _renamed(self._unlisted, name)

    def sections(self, name: str) -> Mapping[Section, SectionCard]:
        """How the sections of a prompt for ``name`` share its budget, in the prompt's order."""
        known = self._sections.get(name) or self._sections.get(UNLISTED)
        return known if known is not None else self._any_sections

    @property
    def default(self) -> ModelCard:
        """The card of the model that answers turns which name none."""
        return self.model(self._default)

    @property
    def names(self) -> tuple[str, ...]:
        """The listed models, in alphabetical order."""
        return tuple(sorted(self._cards))


class _Share(BaseModel):
    """What a file says of a section; what it leaves out comes from the one above."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    floor: int | None = None
    ceiling: int | None = None
    priority: int | None = None


class _Card(ModelCard):
    """A card as the file spells it: its name is the table's key."""

    name: str = UNLISTED
    sections: dict[Section, _Share] = Field(default_factory=dict)


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    default: str = Field(min_length=1)
    unlisted: _Card
    sections: dict[Section, _Share] = Field(default_factory=dict)
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
    return ModelCard.model_validate({**card.model_dump(exclude={"sections"}), "name": name})


def _shares(file: _File, card: _Card) -> dict[Section, SectionCard]:
    """The sections of one model: its own word, else the file's, else the default.

    Raises:
        CatalogueInvalid: A floor is above its ceiling, or a number is below 0.
    """
    found = {}
    for section, default in _default_sections().items():
        said = default.model_dump()
        for share in (file.sections.get(section), card.sections.get(section)):
            if share is not None:
                said.update(share.model_dump(exclude_none=True))
        try:
            found[section] = SectionCard.model_validate(said)
        except ValidationError as error:
            reason = error.errors(include_url=False, include_input=False)[0]["msg"]
            raise CatalogueInvalid(f"sections.{section}: {reason}; correct it there") from error
    return found


def _check_budgets(path: Path, card: ModelCard, sections: Mapping[Section, SectionCard]) -> None:
    """Refuse budgets that no prompt could keep beside the longest reply.

    What is never trimmed counts with its ceiling, since it may be filled; all else with its floor.

    Raises:
        CatalogueInvalid: Names the sum and the window.
    """
    kept = {name: share.ceiling for name, share in sections.items() if name in _NEVER_TRIMMED}
    ceilings = sum(ceiling for ceiling in kept.values() if ceiling is not None)
    floors = sum(share.floor for name, share in sections.items() if kept.get(name) is None)
    prompt = ceilings + floors + card.reply_overhead
    needed = ceil(prompt * card.safety_factor) + card.max_output
    if needed > card.window:
        raise CatalogueInvalid(
            f"{path}: model {card.name}: the ceilings of {' and '.join(_NEVER_TRIMMED)} "
            f"({ceilings}), the other sections' floors ({floors}) and reply_overhead "
            f"({card.reply_overhead}), times safety_factor {card.safety_factor:g}, with max_output "
            f"({card.max_output}) add up to {needed} tokens, more than the window of "
            f"{card.window}; lower a ceiling, a floor or max_output"
        )


def _renamed(card: ModelCard, name: str) -> ModelCard:
    return card.model_copy(update={"name": name})
