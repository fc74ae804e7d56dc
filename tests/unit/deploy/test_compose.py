"""The compose file is valid by the Compose Specification and keeps our own rules.

The schema is the one of the Compose Specification, as the package ``check-jsonschema`` ships it.
No container engine is needed, and none is started here.
"""

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from prometheus_client import CollectorRegistry

from deploy.docs_settings import COMPOSE_DEFAULTS, settings_classes, variables_of
from libs.service import RELAY_DRAIN_S
from libs.settings import ServiceSettings
from libs.telemetry.ops_server import OpsServer
from services.frontend_gateway.http.server import GRACE_S
from services.frontend_gateway.settings import GatewaySettings
from services.llm_gateway.settings import LlmSettings
from services.ops.__main__ import main
from services.ops.migrations import SERVICES
from services.ops.service_environment import ROLE_URLS, role_passwords
from services.ops.settings import OpsSettings
from tests.unit.deploy.given import read_by, settings_given

ROOT = Path(__file__).resolve().parents[3]
COMPOSE_PATH = ROOT / "docker-compose.yml"
DOCKERFILE_PATH = ROOT / "deploy" / "docker" / "Dockerfile"
SCHEMA_FILE = "check_jsonschema/builtin_schemas/vendor/compose-spec.json"
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_PATH.read_text(encoding="utf-8"))

PINNED = re.compile(r".+:v?\d+(\.\d+)+(-[\w-]+)?")
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
            source, _, mode = volume.partition(":")
            if source.startswith("./"):
                if not (ROOT / source).exists() or not mode.endswith(":ro"):
                    found.append(f"{name} uses {volume}, which is not there or may be written")
            elif source not in compose["volumes"]:
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
        elif set(services[other]["profiles"]) - set(services[name]["profiles"]):
            yield f"{name} waits for {other}, which another profile starts"
        elif wait["condition"] == "service_healthy" and "healthcheck" not in services[other]:
            yield f"{name} waits for the health of {other}, which nobody checks"
        elif wait["condition"] != "service_completed_successfully":
            pass
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
        {"services": {"kafka": {"profiles": "core"}}},
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
    services["grafana"]["depends_on"]["kafka"] = {"condition": "service_healthy"}
    services["collector"]["volumes"] = ["./deploy/observability/collector/config.yml:/etc/x.yml"]
    services["postgres"]["ports"] = ["5432:5432"]
    services["kafka"]["image"] = "apache/kafka:latest"
    del compose["volumes"]["kafka-data"]

    text = " ".join(faults(compose))

    for said in ("is not there", "nobody checks", "for ever", "beyond", "pinned", "not declared"):
        assert said in text
    for said in ("another profile", "may be written"):
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
    for name in settings_classes():
        assert set(COMPOSE["services"][name]["environment"]) <= read_by(name), name


# What .env cannot say: the broker of this file has no accounts, the catalogue is the image's own.
FIXED = re.compile(r"__KAFKA_|^TURNWIRE_MODELS_FILE$")


@pytest.mark.parametrize("name", SERVICES)
def test_every_setting_that_env_may_hold_reaches_its_service(name: str) -> None:
    given = set(COMPOSE["services"][name]["environment"])
    read = {variable.name for variable in variables_of(settings_classes()[name])}

    assert {variable for variable in read - given if not FIXED.search(variable)} == set()
    tracing = {name for name in read_by("ops") if name.startswith("OTEL_")} - {"OTEL_SERVICE_NAME"}
    assert tracing <= given


ENV = {  # what a person fills in, and one setting more
    **{name: "filled-in-0123456789" for name, _ in interpolations(COMPOSE) if SECRET.search(name)},
    "LLM_BASE_URL": "http://127.0.0.1:8080/v1",
    "LLM_MODEL": "small",
    "TURNWIRE_INGESTION__QUEUE_DEPTH": "12",
}


def filled_in(name: str) -> dict[str, str]:
    """The variables of a service as compose hands them over."""

    def value_of(match: re.Match[str]) -> str:
        name, modifier = match.group(1), match.group(2) or ""
        return ENV.get(name, modifier[2:] if modifier.startswith(":-") else "")

    found = {}
    for variable, text in COMPOSE["services"][name]["environment"].items():
        if text is not None:
            found[variable] = VARIABLE.sub(value_of, text)
        elif variable in ENV:
            found[variable] = ENV[variable]
    return found


def seconds(text: str) -> int:
    """A duration of compose."""
    return int(text.removesuffix("s"))


def settings_of(name: str, monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    """A service's settings as it reads them in its container."""
    return settings_given(name, filled_in(name), monkeypatch)


def test_every_service_accepts_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {name: settings_of(name, monkeypatch) for name in (*SERVICES, "ops")}

    gateway, ops, llm = settings["frontend_gateway"], settings["ops"], settings["llm_gateway"]
    assert isinstance(gateway, GatewaySettings)
    assert isinstance(ops, OpsSettings)
    assert isinstance(llm, LlmSettings)
    assert getattr(settings["ingestion"], "queue_depth") == 12  # noqa: B009 -- of one class
    assert (gateway.llm_model, llm.llm_base_url) == ("small", ENV["LLM_BASE_URL"])
    assert f":{gateway.port}" in COMPOSE["services"]["frontend_gateway"]["ports"][0]
    assert ops.gateway_url == f"http://frontend_gateway:{gateway.port}"
    assert {"frontend_gateway", "127.0.0.1", "localhost"} <= set(gateway.allowed_hosts)
    grace_s = {name: seconds(COMPOSE["services"][name]["stop_grace_period"]) for name in SERVICES}
    assert grace_s["frontend_gateway"] > gateway.drain_s + GRACE_S
    assert grace_s["llm_gateway"] > llm.pool_limits.drain_s + RELAY_DRAIN_S
    assert min(grace_s.values()) > 2 * RELAY_DRAIN_S


def test_the_jobs_run_commands_that_exist_with_what_they_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("migrate", "topics"):
        assert main([*COMPOSE["services"][name]["command"], "--help"]) == 0, name
    assert main(["topics", "aply", "--help"]) != 0
    assert "apply" in capsys.readouterr().err

    given = filled_in("migrate")
    assert given.keys() == {"DATABASE_URL", *ROLE_URLS}
    assert len(role_passwords(given)) == len(ROLE_URLS)  # each role gets the one that it uses
    assert settings_given("ops", filled_in("topics"), monkeypatch).topics_profile == "local"
    assert COMPOSE["services"]["ops"]["scale"] == 0  # `up` starts none; `run` starts one


async def test_what_health_checks_and_probes_ask_is_answered() -> None:
    chart = (ROOT / "deploy/helm/rendered/default.yaml").read_text(encoding="utf-8")
    image = DOCKERFILE_PATH.read_text(encoding="utf-8")
    compose = " ".join(COMPOSE["services"]["ingestion"]["healthcheck"]["test"])
    asked = re.compile(r"http://127\.0\.0\.1:9100(/\w+)")
    paths = {*asked.findall(image), *asked.findall(compose)}
    paths |= set(re.findall(r"path: (/\w+), port: ops", chart))
    paths |= set(re.findall(r"prometheus\.io/path: (/\w+)", chart))
    server = OpsServer(CollectorRegistry(), host="127.0.0.1", port=0, liveness={}, readiness={})
    await server.start()
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            for path in paths:
                answer = await client.get(f"http://127.0.0.1:{server.port}{path}")
                assert answer.status_code == 200, path
    finally:
        await server.stop()

    assert paths == {"/livez", "/readyz", "/metrics"}
    for name in SERVICES:
        variable = f"TURNWIRE_{name.upper()}__OPS_PORT"
        assert COMPOSE["services"][name]["environment"][variable] == "9100"


def test_every_part_belongs_to_one_profile_and_the_example_starts_the_core() -> None:
    by_profile: dict[str, set[str]] = {}
    for name, service in COMPOSE["services"].items():
        (profile,) = service["profiles"]
        by_profile.setdefault(profile, set()).add(name)

    assert by_profile.keys() == {"core", "obs", "tools"}
    assert by_profile["core"] >= set(SERVICES) - {"ops"} | {"postgres", "kafka", "valkey"}
    assert by_profile["obs"] == {"prometheus", "grafana", "collector", "traces"}
    assert COMPOSE_DEFAULTS["COMPOSE_PROFILES"] == "core"


def test_prometheus_reaches_the_second_port_of_every_service() -> None:
    scraped = yaml.safe_load(
        (ROOT / "deploy/observability/prometheus/prometheus.yml").read_text(encoding="utf-8")
    )["scrape_configs"]
    targets = {
        target for job in scraped for one in job["static_configs"] for target in one["targets"]
    }
    for name in set(SERVICES) - {"ops"}:
        environment = COMPOSE["services"][name]["environment"]
        prefix = f"TURNWIRE_{name.upper()}__OPS"
        assert ip_address(environment[f"{prefix}_HOST"]).is_unspecified
        assert f"{name}:{environment[f'{prefix}_PORT']}" in targets


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


def test_the_image_holds_every_package_that_the_project_ships_and_no_compiler() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    text = DOCKERFILE_PATH.read_text(encoding="utf-8")
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert f"\nCOPY {package} ./{package}\n" in text
    assert "apt-get" not in text
    assert "HEALTHCHECK" in text.rpartition("FROM ")[2]


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
