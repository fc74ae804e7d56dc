"""What can be set for the gateway; read once, in ``__main__``."""

from pathlib import Path

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from libs.catalogue import DEFAULT_PATH
from libs.settings import ServiceSettings


class GatewaySettings(ServiceSettings):
    """Settings of the front-end gateway, ``TURNWIRE_FRONTEND_GATEWAY__…``."""

    model_config = SettingsConfigDict(
        env_prefix="TURNWIRE_FRONTEND_GATEWAY__",
        frozen=True,
        extra="ignore",
        populate_by_name=True,
    )

    door_master_key: SecretStr = Field(
        validation_alias=AliasChoices("TURNWIRE_DOOR_MASTER_KEY", "door_master_key"),
        min_length=16,
        description="Shared with ingestion and ops: derives the secrets of all door keys.",
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65_535, description="Port of the HTTP interface.")
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/]+$",
        description="Scheme and host as clients know them; unset takes those of the request, which "
        "are wrong behind a proxy that ends TLS.",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=("127.0.0.1", "localhost", "[::1]"),
        description="Host names this server answers for, without port, as a JSON list; * is any.",
    )
    acceptance_wait_s: float = Field(
        default=10.0, gt=0, le=60, description="Longest wait for the outcome of a request."
    )
    max_streams_per_key: int = Field(
        default=500, ge=1, le=100_000, description="Open streams of one API key; above it 429."
    )
    session_lifetime_s: int = Field(
        default=7 * 24 * 3600, ge=60, le=90 * 24 * 3600, description="Of a browser session."
    )
    models_file: Path = Field(
        default=DEFAULT_PATH,
        validation_alias=AliasChoices("TURNWIRE_MODELS_FILE", "models_file"),
        description="The catalogue of models; its sections bound instructions.",
    )
    llm_model: str | None = Field(
        default=None,
        min_length=1,
        validation_alias=AliasChoices("LLM_MODEL", "llm_model"),
        description="Model of turns that name none; without it the catalogue's default.",
    )
    system_policy_text: str = Field(
        default="",
        validation_alias=AliasChoices(
            "TURNWIRE_CONTEXT_ASSEMBLY__SYSTEM_POLICY_TEXT", "system_policy_text"
        ),
        description="As context_assembly has it, so that a payload can be made again.",
    )
    system_policy_version: str = Field(
        default="1",
        validation_alias=AliasChoices(
            "TURNWIRE_CONTEXT_ASSEMBLY__SYSTEM_POLICY_VERSION", "system_policy_version"
        ),
        description="As context_assembly has it; plans name it.",
    )
    conversation_poll_s: float = Field(
        default=1.0,
        gt=0,
        le=60,
        description="Seconds between two looks at the conversations whose events are streamed.",
    )
    drain_s: float = Field(
        default=10.0,
        ge=0,
        le=60,
        description="At the end streams close spread over this time, so clients return one by one.",
    )
