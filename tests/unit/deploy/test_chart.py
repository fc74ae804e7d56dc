"""The chart's renderings are valid for Kubernetes, and what they start would start.

They are judged as they are stored; sums of all files tell that they were rendered from the chart as
it is. Where Helm is at hand they are made anew and compared as well, and Helm itself refuses values
that the schema forbids.
"""

import copy
import json
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator
from jsonschema.exceptions import ValidationError

from deploy import chart
from libs.catalogue import Catalogue
from libs.service import RELAY_DRAIN_S
from libs.settings import FILE_SUFFIX, ServiceSettings
from schemas.topic_files import load_topics
from services.context_assembly.handlers import CONSUMER as CONTEXT
from services.frontend_gateway.http.server import GRACE_S
from services.frontend_gateway.settings import GatewaySettings
from services.ingestion.handlers.generation_events import GenerationEventHandler
from services.ingestion.handlers.requests import RequestHandler
from services.llm_gateway.handlers import CONTEXT_CONSUMER
from services.llm_gateway.settings import LlmSettings
from services.ops.migrations import SERVICES
from services.ops.service_environment import ROLE_URLS
from services.ops.settings import OpsSettings
from tests.unit.deploy.given import mounted, read_by, secret_for, settings_given

KUBERNETES = chart.KUBERNETES_VERSION.rpartition(".")[0]
VALUES: dict[str, Any] = yaml.safe_load((chart.CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((chart.CHART / "values.schema.json").read_text(encoding="utf-8"))
SCALED_OBJECT = json.loads(
    (Path(__file__).parent / "data" / "scaledobject.schema.json").read_text(encoding="utf-8")
)
GROUPS = {CONTEXT, CONTEXT_CONSUMER, RequestHandler.consumer, GenerationEventHandler.consumer}

Manifest = dict[str, Any]


def manifests(name: str) -> list[Manifest]:
    """What a stored rendering asks a cluster for."""
    text = (chart.RENDERED / name).read_text(encoding="utf-8")
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


BY_FILE = {name: manifests(name) for name in chart.RENDERINGS}
ALL = [(name, one) for name, found in BY_FILE.items() for one in found]


def of_kind(name: str, kind: str) -> dict[str, Manifest]:
    """By the component they belong to."""
    return {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: one
        for one in BY_FILE[name]
        if one["kind"] == kind
    }


def validate(manifest: Manifest) -> None:
    """Judge a manifest by the schema of its kind."""
    if manifest["kind"] == "ScaledObject":
        Draft7Validator(SCALED_OBJECT).validate(manifest)
    else:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def pods() -> Iterator[tuple[str, Manifest]]:
    """Every pod that a rendering starts."""
    for name, one in ALL:
        if one["kind"] in ("Deployment", "Job"):
            yield f"{name} {one['metadata']['name']}", one["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("name", "manifest"), ALL, ids=[f"{n}-{m['kind']}-{m['metadata']['name']}" for n, m in ALL]
)
def test_every_manifest_is_valid_for_kubernetes(name: str, manifest: Manifest) -> None:
    del name
    validate(manifest)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ("spec", "template", "spec", "containrs"), []),
        ("Deployment", ("spec", "replicas"), "two"),
        ("NetworkPolicy", ("spec", "policyTypes"), "Egress"),
        ("ScaledObject", ("spec", "maxReplicas"), 3),
        ("ScaledObject", ("spec", "triggers"), [{"metadata": {}}]),
    ],
)
def test_a_manifest_against_the_schemas_is_noticed(
    kind: str, path: tuple[str, ...], value: object
) -> None:
    broken = copy.deepcopy(next(one for _, one in ALL if one["kind"] == kind))
    inner = broken
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value

    with pytest.raises((ValidationError, kubernetes_validate.ValidationError)):
        validate(broken)


@pytest.mark.parametrize(("where", "pod"), list(pods()), ids=lambda value: str(value)[:60])
def test_every_pod_is_not_root_writes_nowhere_and_holds_no_token(where: str, pod: Manifest) -> None:
    assert pod["automountServiceAccountToken"] is False, where
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert "memory" in container["resources"]["limits"]
    assert not container["image"].endswith(("latest", ":"))


@pytest.mark.parametrize("name", BY_FILE)
def test_every_service_has_probes_a_budget_a_policy_and_time_to_end(name: str) -> None:
    deployments = of_kind(name, "Deployment")

    assert deployments.keys() == {*SERVICES, "ops"}
    assert of_kind(name, "PodDisruptionBudget").keys() == set(SERVICES)
    assert of_kind(name, "NetworkPolicy").keys() == {*SERVICES, "ops"}
    for service in SERVICES:
        deployment = deployments[service]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["args"] == ["run", service]
        assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "ops"}
        assert container["startupProbe"]["httpGet"] == {"path": "/livez", "port": "ops"}
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "ops"}
        budget = of_kind(name, "PodDisruptionBudget")[service]["spec"]
        assert budget["selector"] == deployment["spec"]["selector"]
        assert of_kind(name, "NetworkPolicy")[service]["spec"]["podSelector"] == budget["selector"]


@pytest.mark.parametrize("name", BY_FILE)
def test_a_service_is_given_only_what_it_reads_and_no_secret_of_another(name: str) -> None:
    for service, deployment in of_kind(name, "Deployment").items():
        pod = deployment["spec"]["template"]["spec"]
        known = read_by(service)
        given = {variable["name"] for variable in variables(pod)} - known
        assert {variable.removesuffix(FILE_SUFFIX) for variable in given} <= known, service
        (keys,) = [volume["secret"]["items"] for volume in pod["volumes"] if "secret" in volume]
        databases = [one["key"] for one in keys if one["key"].endswith("database-url")]
        assert databases == [f"{service.replace('_', '-')}-database-url"]
        assert pod["enableServiceLinks"] is False  # or the cluster sets TURNWIRE_PORT and others


def variables(pod: Manifest) -> list[Manifest]:
    """The variables of a pod's one container."""
    (container,) = pod["containers"]
    names = [variable["name"] for variable in container["env"]]
    assert len(names) == len(set(names)), "a variable stands twice"
    found: list[Manifest] = container["env"]
    return found


def files_in(pod: Manifest, name: str) -> dict[str, str]:
    """Path in the container -> what stands there, of secrets and maps that are mounted."""
    maps = {one["metadata"]["name"]: one["data"] for one in BY_FILE[name] if "data" in one}
    found = {}
    for mount in pod["containers"][0]["volumeMounts"]:
        (volume,) = [one for one in pod["volumes"] if one["name"] == mount["name"]]
        for item in volume.get("secret", {}).get("items", []):
            found[f"{mount['mountPath']}/{item['path']}"] = secret_for(
                item["key"].replace("-", "_").upper()
            )
        for key, text in maps.get(volume.get("configMap", {}).get("name"), {}).items():
            found[f"{mount['mountPath']}/{key}"] = text
    return found


def settings_of(
    name: str, service: str, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str = "Deployment"
) -> ServiceSettings:
    """A service's settings as it reads them in its pod."""
    labelled = of_kind(name, kind)["topics" if kind == "Job" else service]
    pod = labelled["spec"]["template"]["spec"]
    files = files_in(pod, name)
    given = {}
    for variable in variables(pod):
        value = variable.get("value") or secret_for(variable["name"])
        if value.startswith("/"):
            value = mounted(folder, value.replace("/", "-"), files[value])
        given[variable["name"]] = value
    return settings_given(service, given, monkeypatch)


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("name", BY_FILE)
def test_a_service_accepts_what_its_pod_gives_it(
    name: str, service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(name, service, tmp_path, monkeypatch)

    pod = of_kind(name, "Deployment")[service]["spec"]["template"]["spec"]
    ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    assert settings.ops_port == ports["ops"]
    assert ip_address(settings.ops_host).is_unspecified  # probes come from the node
    assert settings.kafka_bootstrap_servers == pod_value(pod, "KAFKA_BOOTSTRAP_SERVERS")
    assert (settings.kafka_password is not None) is (name == "full.yaml")
    assert settings.topics_profile == settings.profile == "production"
    assert "secret" in settings.redis_url.get_secret_value()
    if name == "full.yaml":
        catalogue = Catalogue.load(Path(str(getattr(settings, "models_file"))))  # noqa: B009
        assert catalogue.default.name == "small"


def pod_value(pod: Manifest, name: str) -> str:
    """The plain value of a variable."""
    (found,) = [one["value"] for one in variables(pod) if one["name"] == name]
    return str(found)


def test_the_gateway_answers_under_the_names_by_which_it_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = settings_of("full.yaml", "frontend_gateway", tmp_path, monkeypatch)
    assert isinstance(full, GatewaySettings)
    (ingress,) = of_kind("full.yaml", "Ingress").values()
    host = ingress["spec"]["rules"][0]["host"]
    (service,) = [one for one in BY_FILE["full.yaml"] if one["kind"] == "Service"]
    inside = service["metadata"]["name"]

    assert {host, "chat.internal", inside, f"{inside}.turnwire.svc"} <= set(full.allowed_hosts)
    assert full.public_url == f"https://{host}"  # TLS ends at the ingress
    (rule,) = service["spec"]["ports"]
    pod = of_kind("full.yaml", "Deployment")["frontend_gateway"]["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert {"name": rule["targetPort"], "containerPort": full.port} in (
        pod["spec"]["containers"][0]["ports"]
    )
    assert full.system_policy_text == "Answer in one sentence."  # as context_assembly has it

    ops = settings_of("full.yaml", "ops", tmp_path, monkeypatch)
    assert isinstance(ops, OpsSettings)
    assert urlsplit(ops.gateway_url).hostname in full.allowed_hosts
    assert (urlsplit(ops.gateway_url).port or 80) == rule["port"]


def test_the_models_card_is_the_same_for_all_who_count_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for service in ("frontend_gateway", "ingestion", "context_assembly"):
        settings = settings_of("full.yaml", service, tmp_path, monkeypatch)
        assert getattr(settings, "llm_model") == "small", service  # noqa: B009


def test_the_jobs_are_given_what_their_commands_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in BY_FILE:
        jobs = of_kind(name, "Job")
        migrate = jobs["migrate"]["spec"]["template"]["spec"]
        assert {one["name"] for one in variables(migrate)} == {"DATABASE_URL", *ROLE_URLS}
        topics = settings_of(name, "ops", tmp_path, monkeypatch, kind="Job")
        assert topics.topics_profile == "production"
        assert (topics.kafka_security_protocol, topics.kafka_password is None) == (
            ("PLAINTEXT", True) if name == "default.yaml" else ("SASL_SSL", False)
        )


def test_a_service_has_the_time_it_needs_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = {
        service: one["spec"]["template"]["spec"]
        for service, one in of_kind("default.yaml", "Deployment").items()
    }
    grace_s = {service: pod["terminationGracePeriodSeconds"] for service, pod in pods.items()}
    gateway = settings_of("default.yaml", "frontend_gateway", tmp_path, monkeypatch)
    llm = settings_of("default.yaml", "llm_gateway", tmp_path, monkeypatch)
    assert isinstance(gateway, GatewaySettings)
    assert isinstance(llm, LlmSettings)
    before = pods["frontend_gateway"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]

    assert grace_s["frontend_gateway"] > int(before[1]) + gateway.drain_s + GRACE_S
    assert grace_s["llm_gateway"] > llm.pool_limits.drain_s + RELAY_DRAIN_S
    assert min(grace_s[service] for service in SERVICES) > 2 * RELAY_DRAIN_S


@pytest.mark.parametrize("name", BY_FILE)
def test_a_policy_lets_a_service_reach_every_address_that_it_is_given(name: str) -> None:
    for service, deployment in of_kind(name, "Deployment").items():
        pod = deployment["spec"]["template"]["spec"]
        plain = {one["name"]: one["value"] for one in variables(pod) if "value" in one}
        rules = of_kind(name, "NetworkPolicy")[service]["spec"]["egress"]
        allowed = {port["port"] for rule in rules for port in rule["ports"]}
        asked = {int(broker.rpartition(":")[2]) for broker in plain[BROKERS].split(",")}
        urls = [plain[key] for key in ("LLM_BASE_URL", TRACES) if key in plain]
        asked |= {urlsplit(url).port or 443 for url in urls}
        assert asked | {53, 5432, 6379} <= allowed, service


BROKERS = "KAFKA_BOOTSTRAP_SERVERS"
TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize("name", BY_FILE)
def test_no_secret_stands_in_a_manifest(name: str) -> None:
    for _, pod in pods():
        for variable in pod["containers"][0]["env"]:
            if variable["name"].endswith(("PASSWORD", "MASTER_KEY", "API_KEY", "DATABASE_URL")):
                assert "secretKeyRef" in variable["valueFrom"]
    assert "Secret" not in {one["kind"] for one in BY_FILE[name]}


def test_services_scale_by_the_lag_of_groups_and_topics_that_exist() -> None:
    scaled = of_kind("full.yaml", "ScaledObject")
    topics = {file.topic for file in load_topics()}

    assert scaled.keys() == set(SERVICES) - {"frontend_gateway"}
    assert of_kind("full.yaml", "HorizontalPodAutoscaler").keys() == {"frontend_gateway"}
    for one in scaled.values():
        for trigger in one["spec"]["triggers"]:
            assert trigger["metadata"]["consumerGroup"] in GROUPS
            assert trigger["metadata"]["topic"] in topics
            assert trigger["authenticationRef"] == {"name": "kafka"}
    for service in SERVICES:
        deployment = of_kind("full.yaml", "Deployment")[service]
        assert "replicas" not in deployment["spec"]  # or each upgrade would undo the autoscaler


def test_only_the_model_gateway_may_leave_and_only_the_front_end_may_be_reached() -> None:
    policies = of_kind("full.yaml", "NetworkPolicy")
    for service, policy in policies.items():
        spec = policy["spec"]
        leaves = {port["port"] for rule in spec["egress"] for port in rule["ports"]}
        reached = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
        assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
        assert (443 in leaves) is (service == "llm_gateway")
        assert ("http" in reached) is (service == "frontend_gateway")
        assert all(rule.get("from") for rule in spec["ingress"])
        if service == "ops":
            assert reached == set()


def test_the_schema_comes_before_the_topics_and_both_before_the_services() -> None:
    jobs = of_kind("default.yaml", "Job")
    weights = {
        name: int(job["metadata"]["annotations"]["helm.sh/hook-weight"])
        for name, job in jobs.items()
    }
    assert weights["migrate"] < weights["topics"]
    for job in jobs.values():
        assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"


def test_the_charts_own_values_satisfy_their_schema() -> None:
    Draft7Validator.check_schema(SCHEMA)
    Draft7Validator(SCHEMA).validate(VALUES)


def with_env(**env: str) -> Manifest:
    """The model gateway's values with settings of its own."""
    return {**VALUES["services"]["llm_gateway"], "env": env}


BAD_VALUES = [
    {"image": {"repository": "turnwire", "tag": "latest"}},
    {"kafka": {"bootstrapServers": "kafka"}},
    {"services": {**VALUES["services"], "ingestoin": VALUES["services"]["ingestion"]}},
    {"networkpolicy": {"enabled": True}},
    {"services": {**VALUES["services"], "ingestion": {"replicas": 1}}},
    {"gateway": {"publicUrl": "https://chat.example/"}},
    {"networkPolicy": {"enabled": True, "postgres": {"ports": []}}},
    {"services": {**VALUES["services"], "llm_gateway": with_env(LLM_API_KEY="sk-plain")}},
    {"services": {**VALUES["services"], "llm_gateway": with_env(PATH="/")}},
]


@pytest.mark.parametrize("bad", BAD_VALUES, ids=str)
def test_values_that_make_no_sense_are_refused(bad: Manifest) -> None:
    with pytest.raises(ValidationError):
        Draft7Validator(SCHEMA).validate({**VALUES, **bad})


def test_the_renderings_were_made_from_the_chart_as_it_is() -> None:
    assert chart.changed_since() == [], "run python -m deploy.chart"


def test_a_chart_that_was_changed_without_a_rendering_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = chart.SUMS.read_text(encoding="utf-8")
    first, *rest = stored.splitlines(keepends=True)
    other = tmp_path / "files.sha256"
    other.write_text("".join([first.replace(first[:4], "beef"), *rest[1:]]), encoding="utf-8")
    monkeypatch.setattr(chart, "SUMS", other)

    changed = [line.split()[1] for line in (first, rest[0])]
    assert chart.changed_since() == sorted(changed)
    assert chart.main(["--check"]) == 1


def test_helm_renders_the_same_where_it_is_at_hand() -> None:
    program = chart.helm(may_build=False)
    if program is None:
        pytest.skip(
            "there is no Helm here to render the chart anew (`make chart` builds it where there is "
            "Go): the stored renderings, made from the chart as it is, were judged instead"
        )

    assert chart.stale_renderings(program) == {}
    refused = chart.rendered(program, "--set", "kafka.bootstrapServers=nowhere")
    assert refused.returncode != 0
    assert "bootstrapServers" in refused.stderr
