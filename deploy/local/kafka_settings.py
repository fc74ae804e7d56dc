"""The text of Kafka's settings: one node that is broker and controller, small and quick."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CLIENT_LISTENER = "CLIENTS"
CONTROLLER_LISTENER = "CONTROLLER"

JVM_FLAGS = (
    "-Xms48m",
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)

# One node: every internal topic has one copy. The session is short, because the controller
# refuses a killed broker's successor until the old session has run out (15 s by default).
# Threads and buffers are those of a laptop; 128 MB of heap do not hold the cleaner's default.
_FIXED: Mapping[str, str | int] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": CONTROLLER_LISTENER,
    "auto.create.topics.enable": "false",
    "message.max.bytes": 1_048_588,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 300,
    "metadata.max.idle.interval.ms": 5_000,
    "log.cleaner.threads": 1,
    "log.cleaner.dedupe.buffer.size": 4_194_304,
    "num.network.threads": 1,
    "num.io.threads": 2,
    "background.threads": 2,
    "group.coordinator.threads": 1,
    "share.coordinator.threads": 1,
    "log.segment.bytes": 67_108_864,
    "offsets.topic.segment.bytes": 8_388_608,
}


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """Who may connect, for a broker that checks it.

    Attributes:
        users: Password by name (SASL PLAIN); everybody else is refused.
        super_users: Names in ``users`` that no access rule binds. The first one is the broker's
            own, so there is at least one.
    """

    users: Mapping[str, str] = field(repr=False)
    super_users: tuple[str, ...]

    def __post_init__(self) -> None:
        missing = [name for name in self.super_users if name not in self.users]
        if missing or not self.super_users:
            msg = f"super_users must name at least one of users; unknown: {missing}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class SideDoor:
    """A further listener, whose clients are told another port to come back to: that of a proxy.

    Attributes:
        port: Where the broker listens, on 127.0.0.1.
        advertised_port: What it tells the clients that came this way.
    """

    port: int
    advertised_port: int


def server_properties(
    *,
    port: int,
    controller_port: int,
    data_path: Path,
    access: KafkaAccess | None = None,
    side_doors: Sequence[SideDoor] = (),
) -> str:
    """``server.properties`` for one node on 127.0.0.1; mode 0600 is due where ``access`` is."""
    clients = f"{CLIENT_LISTENER}://127.0.0.1:{port}"
    protocol = "PLAINTEXT" if access is None else "SASL_PLAINTEXT"
    names = [f"SIDE_DOOR_{number}" for number in range(len(side_doors))]
    doors = list(zip(names, side_doors, strict=True))
    listening = [f"{name}://127.0.0.1:{door.port}" for name, door in doors]
    advertised = [f"{name}://127.0.0.1:{door.advertised_port}" for name, door in doors]
    controller = f"{CONTROLLER_LISTENER}://127.0.0.1:{controller_port}"
    settings: dict[str, str | int] = {
        **_FIXED,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": ",".join([clients, *listening, controller]),
        "advertised.listeners": ",".join([clients, *advertised]),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name in (CLIENT_LISTENER, *names, CONTROLLER_LISTENER)
        ),
        "inter.broker.listener.name": CLIENT_LISTENER,
        "log.dirs": str(data_path),
        **(_access_settings(access) if access else {}),
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _access_settings(access: KafkaAccess) -> dict[str, str | int]:
    own = access.super_users[0]
    words = [
        "org.apache.kafka.common.security.plain.PlainLoginModule required",
        f'username="{own}" password="{access.users[own]}"',
        *(f'user_{name}="{password}"' for name, password in access.users.items()),
    ]
    login = " ".join(words) + ";"
    return {
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        f"listener.name.{CLIENT_LISTENER.lower()}.plain.sasl.jaas.config": login,
        f"listener.name.{CONTROLLER_LISTENER.lower()}.plain.sasl.jaas.config": login,
        f"listener.name.{CONTROLLER_LISTENER.lower()}.sasl.enabled.mechanisms": "PLAIN",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(f"User:{name}" for name in access.super_users),
    }


def log_properties(log_path: Path) -> str:
    """Settings of log4j: warnings and worse, appended to one file."""
    return f"""status=error
appender.file.type=File
appender.file.name=file
appender.file.fileName={log_path}
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d{{ISO8601}} %p %m (%c)%n
rootLogger.level=warn
rootLogger.appenderRef.file.ref=file
"""
