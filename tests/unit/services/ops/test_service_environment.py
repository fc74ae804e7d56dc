"""A service process gets its own settings and nobody else's secrets."""

import pytest

from deploy.docs_settings import settings_classes, variables_of
from services.ops.service_environment import SERVICES, role_passwords, service_environment

STACK = {
    "DATABASE_URL": "postgresql://postgres:admin-secret@127.0.0.1/turnwire",
    "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9092",
    "REDIS_URL": "redis://:redis-secret@127.0.0.1:6379/0",
    "LLM_BASE_URL": "http://127.0.0.1:1/v1",
    "LLM_API_KEY": "llm-secret",
    "LLM_MODEL": "small",
    "TURNWIRE_DOOR_MASTER_KEY": "door-secret",
    **{
        f"TURNWIRE_{name.upper()}__DATABASE_URL": f"postgresql://turnwire_{name}:{name}-secret@h/t"
        for name in (*SERVICES, "ops")
    },
}
SECRETS_OF = {
    "frontend_gateway": {"redis-secret", "door-secret", "frontend_gateway-secret"},
    "ingestion": {"redis-secret", "door-secret", "ingestion-secret"},
    "context_assembly": {"redis-secret", "context_assembly-secret"},
    "llm_gateway": {"redis-secret", "llm-secret", "llm_gateway-secret"},
}


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_gets_only_the_secrets_it_needs(service: str) -> None:
    environment = " ".join(service_environment(service, STACK, given={}, port=8080).values())
    every = {secret for secrets in SECRETS_OF.values() for secret in secrets} | {"admin-secret"}
    assert {secret for secret in every if secret in environment} == SECRETS_OF[service]


@pytest.mark.parametrize("service", SERVICES)
def test_a_local_service_is_quick_to_notice_and_has_one_replica(service: str) -> None:
    environment = service_environment(service, STACK, given={}, port=8080)
    assert environment[f"TURNWIRE_{service.upper()}__PROFILE"] == "local"
    assert environment[f"TURNWIRE_{service.upper()}__TOPICS_PROFILE"] == "local"


def test_own_settings_of_a_service_win_but_for_the_port() -> None:
    given = {
        "TURNWIRE_FRONTEND_GATEWAY__PORT": "1",
        "TURNWIRE_FRONTEND_GATEWAY__DRAIN_S": "2",
        "TURNWIRE_INGESTION__DRAIN_S": "3",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector",
        "HOME": "/root",
    }
    environment = service_environment("frontend_gateway", STACK, given=given, port=9000)
    assert environment["TURNWIRE_FRONTEND_GATEWAY__PORT"] == "9000"
    assert environment["TURNWIRE_FRONTEND_GATEWAY__DRAIN_S"] == "2"
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector"
    assert "TURNWIRE_INGESTION__DRAIN_S" not in environment
    assert "HOME" not in environment


@pytest.mark.parametrize("service", SERVICES)
def test_whatever_a_service_reads_reaches_it_and_nothing_of_another(service: str) -> None:
    given = {v.name: "given" for each in settings_classes().values() for v in variables_of(each)}
    read = {variable.name for variable in variables_of(settings_classes()[service])}

    environment = service_environment(service, {**given, **STACK}, given=given, port=1)

    assert environment.keys() == read


def test_passwords_are_set_for_our_roles_alone() -> None:
    assert role_passwords(
        {
            "TURNWIRE_INGESTION__DATABASE_URL": "postgresql://turnwire_ingestion:a%40b@h:5432/t",
            "TURNWIRE_OPS__DATABASE_URL": "postgresql://somebody:else@h:5432/t",
            "TURNWIRE_LLM_GATEWAY__DATABASE_URL": "postgresql://turnwire_llm_gateway@h/t",
        }
    ) == {"turnwire_ingestion": "a@b"}
