"""The compose file is valid by the Compose Specification and keeps our own rules.

The schema is the one of the Compose Specification, as the package ``check-jsonschema`` ships it.
No container engine is needed, and none is started here.
"""

import copy
import json
import re
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from deploy.docs_settings import settings_classes, variables_of
from services.ops.migrations import SERVICES

ROOT = Path(__file__).resolve().parents[3]
COMPOSE_PATH = ROOT / "docker-compose.yml"
DOCKERFILE_PATH = ROOT / "deploy" / "docker" / "Dockerfile"
SCHEMA_FILE = "check_jsonschema/builtin_schemas/vendor/compose-spec.json"
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_PATH.read_text(encoding="utf-8"))

PINNED = re.compile(r".+:\d+(\.\d+)+(-[\w-]+)?")
VARIABLE = re.compile(r"(?<!\$)\$(?:\{([A-Z_]+)([^}]*)\}|[A-Za-z_])")
SECRET = re.compile(r"PASSWORD|MASTER_KEY")


def compose_schema() -> dict[str, Any]:
    """The JSON Schema of the Compose Specification."""
    path = Path(str(distribution("check-jsonschema").locate_file(SCHEMA_FILE)))
    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return schema


def faults(compose: dict[str, Any]) -> list[str]:
    """What the schema cannot see: names that point at nothing, waits that never end."""
    found: list[str] = []
    for name, service in compose["services"].items():
        found += waits_in_vain(name, service, compose["services"])
        for volume in service.get("volumes", []):
            if volume.split(":")[0] not in compose["volumes"]:
                found.append(f"{name} uses {volume}, which is not declared")
        for port in service.get("ports", []):
            if not port.startswith("127.0.0.1:"):
                found.append(f"{name} listens beyond this machine: {port}")
        if not PINNED.fullmatch(service["image"]):
            found.append(f"{name} has no pinned image: {service['image']}")
    return found


def waits_in_vain(name: str, service: dict[str, Any], services: dict[str, Any]) -> Iterator[str]:
    """What a service waits for although it cannot come."""
    for other, wait in (service.get("depends_on") or {}).items():
        if other not in services:
            yield f"{name} waits for {other}, which is not there"
        elif wait["condition"] == "service_healthy" and "healthcheck" not in services[other]:
            yield f"{name} waits for the health of {other}, which nobody checks"
        elif wait["condition"] != "service_completed_successfully":
            continue
        elif services[other].get("restart") != "no":
            yield f"{name} waits for the end of {other}, which is started for ever"


def interpolations(node: Any) -> Iterator[tuple[str, str]]:
    """Name and modifier of every variable that compose fills in."""
    if isinstance(node, dict):
        for value in node.values():
            yield from interpolations(value)
    elif isinstance(node, list):
        for value in node:
            yield from interpolations(value)
    elif isinstance(node, str):
        for match in VARIABLE.finditer(node):
            yield match.group(1) or match.group(), match.group(2) or ""


def test_the_file_is_valid_by_the_compose_specification() -> None:
    Draft202012Validator(compose_schema()).validate(COMPOSE)


@pytest.mark.parametrize(
    "edit",
    [
        {"services": {"kafka": {"image": "apache/kafka:4.3.1", "helthcheck": {}}}},
        {"services": {"kafka": {"depends_on": {"valkey": {"condition": "service_helthy"}}}}},
        {"services": {"kafka": {"environment": [{"A": "b"}]}}},
        {"service": {}},
    ],
)
def test_a_file_against_the_specification_is_noticed(edit: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Draft202012Validator(compose_schema()).validate({**COMPOSE, **edit})


def test_names_resolve_images_are_pinned_and_ports_stay_on_this_machine() -> None:
    assert faults(COMPOSE) == []


def test_each_fault_is_noticed() -> None:
    compose = copy.deepcopy(COMPOSE)
    services = compose["services"]
    services["migrate"]["restart"] = "always"
    services["ingestion"]["depends_on"]["zookeeper"] = {"condition": "service_started"}
    del services["valkey"]["healthcheck"]
    services["postgres"]["ports"] = ["5432:5432"]
    services["kafka"]["image"] = "apache/kafka:latest"
    del compose["volumes"]["kafka-data"]

    text = " ".join(faults(compose))

    for said in ("is not there", "nobody checks", "for ever", "beyond", "pinned", "not declared"):
        assert said in text


def test_every_service_runs_by_its_name_on_one_image_and_is_checked() -> None:
    images = set()
    for name in SERVICES:
        service = COMPOSE["services"][name]
        images.add(service["image"])
        assert service["command"] == ["run", name]
        assert "healthcheck" in service
        assert service["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
        assert service["depends_on"]["topics"] == {"condition": "service_completed_successfully"}
    assert len(images) == 1


def test_a_secret_comes_from_the_environment_and_is_required() -> None:
    for name, modifier in interpolations(COMPOSE):
        if SECRET.search(name):
            assert modifier.startswith(":?"), f"{name} is not required"
    for service in COMPOSE["services"].values():
        for name, value in service.get("environment", {}).items():
            if SECRET.search(name) or ("://" in str(value) and "@" in str(value)):
                assert "${" in value, f"{name} is written down"


def test_no_service_is_given_the_secret_of_another() -> None:
    for name in SERVICES:
        given = set(COMPOSE["services"][name]["environment"])
        others = {f"TURNWIRE_{other.upper()}__DATABASE_URL" for other in SERVICES if other != name}
        assert not given & (others | {"DATABASE_URL"})
    for name in ("context_assembly", "llm_gateway"):
        assert "TURNWIRE_DOOR_MASTER_KEY" not in COMPOSE["services"][name]["environment"]


def test_a_service_is_given_nothing_that_it_does_not_read() -> None:
    for name, settings in settings_classes().items():
        given = COMPOSE["services"].get(name, {}).get("environment", {})
        assert set(given) <= {variable.name for variable in variables_of(settings)}, name


def test_the_brokers_set_of_variables_is_complete() -> None:
    """With one of them set the image drops every default, so a missing one stops the broker."""
    environment = COMPOSE["services"]["kafka"]["environment"]
    needed = {
        "CLUSTER_ID",
        "KAFKA_NODE_ID",
        "KAFKA_PROCESS_ROLES",
        "KAFKA_LISTENERS",
        "KAFKA_ADVERTISED_LISTENERS",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP",
        "KAFKA_INTER_BROKER_LISTENER_NAME",
        "KAFKA_CONTROLLER_LISTENER_NAMES",
        "KAFKA_CONTROLLER_QUORUM_VOTERS",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR",
        "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR",
        "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR",
    }
    protocols = dict(
        pair.split(":") for pair in environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
    )
    listeners = {url.split("://")[0] for url in environment["KAFKA_LISTENERS"].split(",")}

    assert needed <= environment.keys()
    assert listeners == set(protocols)
    assert environment["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_the_image_is_built_from_the_lock_file_without_the_local_servers_and_not_as_root() -> None:
    text = DOCKERFILE_PATH.read_text(encoding="utf-8")
    bases = [line.split()[1] for line in text.splitlines() if line.startswith("FROM ")]

    assert all(PINNED.fullmatch(base) for base in bases)
    assert text.count("uv sync --frozen --no-default-groups") == 2
    assert 'ENTRYPOINT ["turnwire"]' in text
    last_stage = text.rpartition("FROM ")[2]
    assert "\nUSER 10001\n" in last_stage


def test_what_the_image_copies_is_let_through_to_its_build() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE_PATH.read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    allowed = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))

    assert sources == allowed
    assert [name for name in sources if not (ROOT / name).exists()] == []
