"""How a client proves who it is to the brokers."""

from dataclasses import dataclass
from ssl import create_default_context
from typing import Any, Literal

from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256, SASLScram512
from pydantic import SecretStr

_FASTSTREAM = {
    "PLAIN": SASLPlaintext,
    "SCRAM-SHA-256": SASLScram256,
    "SCRAM-SHA-512": SASLScram512,
}


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """Protocol and credentials; the default is the local broker's plain text without any."""

    protocol: Literal["PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL"] = "PLAINTEXT"
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    username: str | None = None
    password: SecretStr | None = None

    def client_arguments(self) -> dict[str, Any]:
        """The arguments of aiokafka's clients."""
        arguments: dict[str, Any] = {"security_protocol": self.protocol}
        if self.protocol in ("SASL_SSL", "SSL"):
            arguments["ssl_context"] = create_default_context()
        if self.protocol.startswith("SASL"):
            arguments["sasl_mechanism"] = self.mechanism
            arguments["sasl_plain_username"] = self.username
            arguments["sasl_plain_password"] = (
                self.password.get_secret_value() if self.password else None
            )
        return arguments

    def faststream(self) -> BaseSecurity | None:
        """The same for FastStream; None for plain text."""
        if self.protocol == "PLAINTEXT":
            return None
        context = create_default_context() if self.protocol.endswith("SSL") else None
        if not self.protocol.startswith("SASL"):
            return BaseSecurity(ssl_context=context, use_ssl=True)
        return _FASTSTREAM[self.mechanism](
            username=self.username or "",
            password=self.password.get_secret_value() if self.password else "",
            ssl_context=context,
            use_ssl=context is not None,
        )
