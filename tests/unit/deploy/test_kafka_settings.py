from pathlib import Path

import pytest

from deploy.local.kafka import new_cluster_id
from deploy.local.kafka_settings import KafkaAccess, SideDoor, log_properties, server_properties


def settings(access: KafkaAccess | None = None) -> dict[str, str]:
    text = server_properties(port=1, controller_port=2, data_path=Path("/d"), access=access)
    return dict(line.split("=", 1) for line in text.splitlines())


def test_every_listener_is_on_the_loopback_address() -> None:
    assert settings()["listeners"] == "CLIENTS://127.0.0.1:1,CONTROLLER://127.0.0.1:2"


def test_a_side_door_tells_its_clients_another_port() -> None:
    doors = [SideDoor(port=10, advertised_port=11), SideDoor(port=20, advertised_port=21)]
    text = server_properties(port=1, controller_port=2, data_path=Path("/d"), side_doors=doors)
    got = dict(line.split("=", 1) for line in text.splitlines())

    assert got["listeners"].split(",")[1:3] == [
        "SIDE_DOOR_0://127.0.0.1:10",
        "SIDE_DOOR_1://127.0.0.1:20",
    ]
    assert got["advertised.listeners"].split(",") == [
        "CLIENTS://127.0.0.1:1",
        "SIDE_DOOR_0://127.0.0.1:11",
        "SIDE_DOOR_1://127.0.0.1:21",
    ]
    assert "SIDE_DOOR_1:PLAINTEXT" in got["listener.security.protocol.map"]


def test_topics_are_never_made_by_asking_for_them() -> None:
    assert settings()["auto.create.topics.enable"] == "false"


def test_every_internal_topic_fits_one_node() -> None:
    factors = [
        value
        for name, value in settings().items()
        if name.endswith(("replication.factor", "min.isr"))
    ]
    assert len(factors) == 5
    assert set(factors) == {"1"}


def test_the_open_broker_has_no_authorizer() -> None:
    assert not [name for name in settings() if "sasl" in name or "authorizer" in name]


def test_a_broker_with_access_rules_lets_nobody_in_without_a_password() -> None:
    access = KafkaAccess({"root": "r", "ana": "a"}, ("root",))
    got = settings(access)
    assert (
        got["listener.security.protocol.map"] == "CLIENTS:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"
    )
    assert got["super.users"] == "User:root"
    assert 'user_ana="a"' in got["listener.name.clients.plain.sasl.jaas.config"]


def test_the_broker_needs_an_own_user() -> None:
    with pytest.raises(ValueError, match="super_users"):
        KafkaAccess({"ana": "a"}, ())
    with pytest.raises(ValueError, match="root"):
        KafkaAccess({"ana": "a"}, ("root",))


def test_passwords_are_not_part_of_the_text_of_access() -> None:
    assert "hush" not in repr(KafkaAccess({"root": "hush"}, ("root",)))


def test_the_log_goes_to_the_named_file() -> None:
    assert "fileName=/d/kafka.log\n" in log_properties(Path("/d/kafka.log"))


def test_a_cluster_id_is_no_option_of_a_command_line() -> None:
    ids = {new_cluster_id() for _ in range(1_000)}
    assert len(ids) == 1_000
    assert {len(one) for one in ids} == {22}
    assert not [one for one in ids if one.startswith("-")]
