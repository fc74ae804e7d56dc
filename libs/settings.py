"""What every service's settings share; read once, in ``__main__``, from the environment.

Names that other tools know stay unprefixed (``KAFKA_BOOTSTRAP_SERVERS``, ``REDIS_URL``); all else
is ``TURNWIRE_<FOLDER NAME>__<FIELD>``. Any variable may be given as ``<NAME>_FILE``, the path of a
file that holds the value.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from libs.errors import MisconfiguredSettings

FILE_SUFFIX = "_FILE"


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Group membership and leases: the pair of columns in the table of time limits.

    A smaller session finds a dead member sooner and takes a short pause for death more often.
    """

    session_timeout_ms: int
    heartbeat_interval_ms: int
    lease_s: float
    beat_s: float
    self_fence_s: float
    sweep_s: float


LOCAL_LIMITS = TimeLimits(8_000, 2_000, lease_s=8, beat_s=2, self_fence_s=5, sweep_s=1)
PRODUCTION_LIMITS = TimeLimits(15_000, 3_000, lease_s=15, beat_s=4, self_fence_s=10, sweep_s=2)


def with_files(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """The environment with the values of some variables read from files, where files hold them.

    For what no settings class reads. A plain variable wins.

    Raises:
        MisconfiguredSettings: A file cannot be read.
    """
    found = dict(environ)
    for name in names:
        path = environ.get(f"{name}{FILE_SUFFIX}")
        if path and name not in found:
            found[name] = _content(name, path)
    return found


def _content(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        msg = f"{name}{FILE_SUFFIX} names a file that cannot be read: {error.strerror}"
        raise MisconfiguredSettings(msg) from error


class _FileSource(EnvSettingsSource):
    """Reads ``<NAME>_FILE`` variables: secrets mounted as files instead of plain variables."""

    def __init__(self, settings: type[BaseSettings]) -> None:
        super().__init__(settings)
        self.env_vars = {
            name.removesuffix(self._suffix): path
            for name, path in self._environment().items()
            if name.endswith(self._suffix)
        }

    def _environment(self) -> dict[str, str]:
        return {
            (name if self.case_sensitive else name.lower()): value
            for name, value in os.environ.items()
        }

    @property
    def _suffix(self) -> str:
        return FILE_SUFFIX if self.case_sensitive else FILE_SUFFIX.lower()

    def __call__(self) -> dict[str, Any]:
        """All values that stand in files; an unreadable file is our error, not the library's."""
        try:
            return super().__call__()
        except SettingsError as error:
            if isinstance(error.__cause__, MisconfiguredSettings):
                raise error.__cause__ from None
            raise

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The content of the file that the variable names."""
        path, key, is_complex = super().get_field_value(field, field_name)
        if path is None:
            return path, key, is_complex
        return _content(key.upper(), path), key, is_complex


class ServiceSettings(BaseSettings):
    """Base of the settings of all services; each adds its own fields and the prefix."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    profile: Literal["local", "production"] = Field(
        default="production",
        description="Which column of the table of time limits holds: local is quicker to notice.",
    )
    database_url: SecretStr = Field(
        description="postgresql://… of this service's own role; secret, it holds the password."
    )
    database_pool_size: int = Field(default=8, ge=2, le=100, description="Connections at most.")
    kafka_bootstrap_servers: str = Field(
        default="127.0.0.1:9092",
        validation_alias=AliasChoices("KAFKA_BOOTSTRAP_SERVERS", "kafka_bootstrap_servers"),
        description="Brokers to start from, host:port separated by commas.",
    )
    kafka_security_protocol: Literal["PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL"] = Field(
        default="PLAINTEXT", description="How brokers are spoken to."
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="Used by the two SASL protocols."
    )
    kafka_username: str | None = Field(default=None, description="Used by the two SASL protocols.")
    kafka_password: SecretStr | None = Field(
        default=None, description="Used by the two SASL protocols."
    )
    redis_url: SecretStr = Field(
        default=SecretStr("redis://127.0.0.1:6379/0"),
        validation_alias=AliasChoices("REDIS_URL", "redis_url"),
        description="Redis or Valkey, for live streams and wake-ups.",
    )
    ops_host: str = Field(default="127.0.0.1", description="Address of health and metrics.")
    ops_port: int = Field(
        default=0, ge=0, le=65_535, description="Port of /livez, /readyz, /metrics; 0 is any free."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least severe log line that is written."
    )
    log_format: Literal["json", "console"] = Field(
        default="json", description="One JSON object a line, or lines for people."
    )
    topics_profile: Literal["local", "production"] = Field(
        default="production",
        description="Partitions and replicas with which missing topics are made again.",
    )

    @property
    def limits(self) -> TimeLimits:
        """Time limits of the chosen profile."""
        return LOCAL_LIMITS if self.profile == "local" else PRODUCTION_LIMITS

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Plain variables win over files; files win over defaults."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, _FileSource(settings_cls)
