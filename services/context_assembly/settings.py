"""Settings of context assembly, read once in ``__main__``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field
from pydantic_settings import SettingsConfigDict

from libs.catalogue import DEFAULT_PATH
from libs.settings import ServiceSettings

MAX_POLICY_CHARACTERS = 32_768


class ContextSettings(ServiceSettings):
    """What an operator decides about plans."""

    model_config = SettingsConfigDict(
        env_prefix="TURNWIRE_CONTEXT_ASSEMBLY__", frozen=True, extra="ignore", populate_by_name=True
    )

    models_file: Path = Field(
        default=DEFAULT_PATH,
        validation_alias=AliasChoices("TURNWIRE_MODELS_FILE", "models_file"),
        description="The catalogue of models.",
    )
    llm_model: str | None = Field(
        default=None,
        min_length=1,
        validation_alias=AliasChoices("LLM_MODEL", "llm_model"),
        description="Model of turns that name none; without it the catalogue's default.",
    )
    system_policy_text: str = Field(
        default="",
        max_length=MAX_POLICY_CHARACTERS,
        description="Fixed text at the head of every prompt; empty sends no system message.",
    )
    system_policy_version: str = Field(
        default="1",
        min_length=1,
        max_length=64,
        description="Named in every plan; raise it with every change of the text.",
    )
    step_deadline_s: float = Field(
        default=180.0,
        gt=0,
        le=3_600,
        description="Seconds a step may take; a turn's own deadline may come first.",
    )
    capture_posture: Literal["none", "failures"] = Field(
        default="failures",
        description="Whose payloads are kept for a while: of turns that failed, or nobody's. "
        "A tenant may choose for itself.",
    )
    capture_per_mille: int = Field(
        default=0,
        ge=0,
        le=1_000,
        description="Of 1,000 turns that went well, how many keep their payload for a while, "
        "unless the posture is none.",
    )
    captures_keep_days: float = Field(
        default=7.0, gt=0, le=90, description="Days that captured payloads are kept."
    )
    retell_after_s: float = Field(
        default=10.0,
        gt=0,
        le=600,
        description="Seconds after which a step that llm_gateway does not have is told again.",
    )
