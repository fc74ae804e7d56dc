"""Settings of ingestion, read once in ``__main__``."""

from pathlib import Path

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from libs.catalogue import DEFAULT_PATH
from libs.settings import ServiceSettings


class IngestionSettings(ServiceSettings):
    """Settings of the conversation's owner, ``TURNWIRE_INGESTION__…``."""

    model_config = SettingsConfigDict(
        env_prefix="TURNWIRE_INGESTION__", frozen=True, extra="ignore", populate_by_name=True
    )

    door_master_key: SecretStr = Field(
        validation_alias=AliasChoices("TURNWIRE_DOOR_MASTER_KEY", "door_master_key"),
        min_length=16,
        description="Shared with the gateway and ops: derives the secrets of all door keys.",
    )
    models_file: Path = Field(
        default=DEFAULT_PATH,
        validation_alias=AliasChoices("TURNWIRE_MODELS_FILE", "models_file"),
        description="The catalogue of models; it names the tokenizer of every message.",
    )
    llm_model: str | None = Field(
        default=None,
        min_length=1,
        validation_alias=AliasChoices("LLM_MODEL", "llm_model"),
        description="Model of turns that name none; without it the catalogue's default.",
    )
    turn_deadline_s: float = Field(
        default=300.0,
        gt=0,
        le=3_600,
        description="Seconds from the start of a turn to its end, whatever happens.",
    )
    reap_after_s: float = Field(
        default=15.0,
        ge=1,
        le=600,
        description="Seconds after its deadline when a turn that nobody ended is ended here.",
    )
    queue_depth: int = Field(
        default=8,
        ge=1,
        le=31,
        description="Turns of a branch that may wait under policy queue; one more is refused.",
    )
    queue_wait_s: float = Field(
        default=60.0,
        gt=0,
        le=3_600,
        description="Seconds that a turn under policy queue waits for its start before it fails.",
    )
    cancel_grace_s: float = Field(
        default=1.0,
        gt=0,
        le=10,
        description="Seconds after which a cancelled turn that its worker did not end is ended.",
    )
    restore_within_s: float = Field(
        default=600.0,
        ge=1,
        description="Seconds in which a deleted conversation can be restored; then it is purged.",
    )
    purge_every_s: float = Field(
        default=30.0, gt=0, le=3_600, description="Seconds between two looks for what to purge."
    )
    retell_after_s: float = Field(
        default=10.0,
        gt=0,
        le=600,
        description="Seconds after which a started turn without a step is told again.",
    )
    outcomes_keep_s: float = Field(
        default=86_400.0,
        ge=60,
        description="Seconds that the outcome of a request stays readable.",
    )
    inbox_keep_s: float = Field(
        default=14 * 86_400.0,
        ge=3_600,
        description="Seconds that a handled event is remembered; longer than topics keep it.",
    )
    dead_letters_keep_s: float = Field(
        default=14 * 86_400.0, ge=3_600, description="Seconds that dead letters stay."
    )
