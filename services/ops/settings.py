"""Settings of the command line, as far as they come from the environment."""

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from libs.settings import ServiceSettings


class OpsSettings(ServiceSettings):
    """What the command line needs to act on a deployment; a local stack needs none of it."""

    model_config = SettingsConfigDict(
        env_prefix="TURNWIRE_OPS__", frozen=True, extra="ignore", populate_by_name=True
    )

    database_url: SecretStr = Field(
        default=SecretStr(""),
        description="postgresql://… of the role turnwire_ops; secret. A local stack has its own.",
    )
    door_master_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("TURNWIRE_DOOR_MASTER_KEY", "door_master_key"),
        min_length=16,
        description="Shared with the gateway and ingestion; needed to make door keys.",
    )
    gateway_url: str = Field(
        default="http://127.0.0.1:8080",
        pattern=r"^https?://[^/]+$",
        validation_alias=AliasChoices("TURNWIRE_URL", "gateway_url"),
        description="Where chat and turns reach the gateway; a local stack's own comes first.",
    )
    api_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("TURNWIRE_API_KEY", "api_key"),
        description="Of chat and turns; without it the data folder's own key is used.",
    )
