"""Settings of the model gateway, read once in ``__main__``."""

from pathlib import Path
from typing import Self

from pydantic import AliasChoices, Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from libs.catalogue import DEFAULT_PATH
from libs.settings import ServiceSettings
from services.llm_gateway.calls import CallLimits
from services.llm_gateway.pool import PoolLimits
from services.llm_gateway.recoverer import RecoveryLimits

LOCAL_DRAIN_S = 5.0
PRODUCTION_DRAIN_S = 150.0


class LlmSettings(ServiceSettings):
    """What an operator decides about model calls."""

    model_config = SettingsConfigDict(
        env_prefix="TURNWIRE_LLM_GATEWAY__", frozen=True, extra="ignore", populate_by_name=True
    )

    llm_base_url: str = Field(
        default="http://127.0.0.1:8080/v1",
        pattern=r"^https?://",
        validation_alias=AliasChoices("LLM_BASE_URL", "llm_base_url"),
        description="OpenAI-compatible endpoint, up to and without /chat/completions.",
    )
    llm_api_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("LLM_API_KEY", "llm_api_key"),
        description="Sent as bearer token; secret. Not needed by local servers.",
    )
    llm_stream_usage: bool = Field(
        default=True,
        description="Ask for token counts in the stream; off for servers that refuse the field.",
    )
    models_file: Path = Field(
        default=DEFAULT_PATH,
        validation_alias=AliasChoices("TURNWIRE_MODELS_FILE", "models_file"),
        description="The catalogue of models.",
    )
    max_running: int = Field(
        default=64, ge=1, le=2_000, description="Calls of one process at the same time."
    )
    step_s: float = Field(
        default=180.0, gt=0, le=3_600, description="Seconds one attempt may take at most."
    )
    idle_s: float = Field(
        default=60.0, gt=0, le=600, description="Seconds a provider may be silent."
    )
    watch_every_s: float = Field(
        default=0.5,
        gt=0,
        le=60,
        description="Seconds between two looks for watchers of calls that end without any.",
    )
    checkpoint_s: float = Field(
        default=1.0, gt=0, le=60, description="Seconds after which new text is stored."
    )
    checkpoint_bytes: int = Field(
        default=2_048, ge=256, le=65_536, description="Bytes of new text that are stored at once."
    )
    drain_s: float | None = Field(
        default=None,
        ge=0,
        le=3_600,
        description="Seconds running calls may go on after SIGTERM; without it 150 s, locally 5.",
    )
    retell_after_s: float = Field(
        default=10.0,
        gt=0,
        le=600,
        description="Silence of an open turn after which its last event is told again, in seconds.",
    )

    @property
    def pool_limits(self) -> PoolLimits:
        """Limits of the worker."""
        drain_s = LOCAL_DRAIN_S if self.profile == "local" else PRODUCTION_DRAIN_S
        return PoolLimits(
            max_running=self.max_running,
            checkpoint_s=self.checkpoint_s,
            checkpoint_bytes=self.checkpoint_bytes,
            drain_s=drain_s if self.drain_s is None else self.drain_s,
        )

    @property
    def call_limits(self) -> CallLimits:
        """Limits of one call."""
        return CallLimits(step_s=self.step_s, idle_s=self.idle_s)

    @property
    def recovery_limits(self) -> RecoveryLimits:
        """Limits of the sweeps."""
        return RecoveryLimits(
            sweep_s=self.limits.sweep_s,
            silent_s=self.retell_after_s,
            lease_s=self.limits.lease_s,
        )

    @model_validator(mode="after")
    def _silence_is_shorter_than_a_step(self) -> Self:
        if self.idle_s > self.step_s:
            msg = "idle_s must not be above step_s: the silence would never be noticed"
            raise ValueError(msg)
        return self
