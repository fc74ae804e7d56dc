"""Dashboards, alerts and runbooks speak of metrics and of pages that exist."""

import json
import re
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from typer.main import get_command

from deploy.dashboards import DASHBOARDS, Dashboard, Panel, Query, as_json, generated_files, main
from libs.kafka.loop import BUG
from libs.telemetry.labels import Labelled
from libs.telemetry.metrics import NAMESPACE, Metrics
from libs.telemetry.names import LATEST as LATEST_NAMES
from schemas.errors import UnreadableRecord
from schemas.registry import EVENTS_OF_TOPIC
from services.context_assembly import handlers as context_assembly
from services.ingestion.core import door
from services.ingestion.core.turn import REASONS, TurnState
from services.ingestion.handlers import screening
from services.ingestion.handlers.requests import WRONG_IDS
from services.ingestion.settling import TurnMismatch
from services.llm_gateway import handlers as llm_gateway
from services.ops.__main__ import build
from services.ops.cli.command import EVERYWHERE
from services.ops.migrations import SERVICES

ROOT = Path(__file__).resolve().parents[3]
OBSERVABILITY = ROOT / "deploy" / "observability"
RULES = yaml.safe_load((OBSERVABILITY / "prometheus/rules/turnwire.yml").read_text())
RULES_TEST = yaml.safe_load((OBSERVABILITY / "prometheus/rules_test.yml").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
RUNBOOKS = sorted((ROOT / "docs" / "runbooks").glob("*.md"))

(PROVIDER_TROUBLED,) = [r["expr"] for r in ALERTS if r["alert"] == "TurnwireProviderTroubled"]
METRIC = re.compile(rf"{NAMESPACE}_\w+")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
FROM_PROMETHEUS = frozenset({"job", "instance", "le"})
COMMAND = re.compile(r"`turnwire ([^`]+)`")
FOR_OPERATORS = ("deploying", "logs", "monitoring")
DOTTED = re.compile(r"`([a-z]+\.[a-z_.]+)`")
ITALIC = re.compile(r"(?<!\*)\*(\w[^*]*)\*(?!\*)")
VARIABLE = re.compile(r"`((?:TURNWIRE|LLM)_[A-Z_<>]+)`")


def labels_of_metrics() -> dict[str, frozenset[str]]:
    """Every series that a service exposes, with the labels of its metric."""
    found: dict[str, frozenset[str]] = {}
    for name, metric in vars(Metrics(CollectorRegistry())).items():
        inner: MetricWrapperBase = metric._metric if isinstance(metric, Labelled) else metric
        labels = frozenset(inner._labelnames)
        names = [name]
        if inner._type == "histogram":
            names += [f"{name}_bucket", f"{name}_sum", f"{name}_count"]
        found |= {f"{NAMESPACE}_{each}": labels for each in names}
    return found


KNOWN = labels_of_metrics()


def faults(expr: str) -> list[str]:
    """Metrics and labels of a query that no service exposes."""
    metrics = set(METRIC.findall(expr))
    found = [f"no metric {name}" for name in sorted(metrics - KNOWN.keys())]
    known = FROM_PROMETHEUS.union(*(KNOWN.get(name, frozenset()) for name in metrics))
    used = {label.strip() for group in GROUPING.findall(expr) for label in group.split(",")}
    used |= set(MATCHER.findall(expr))
    return found + [f"no label {label}" for label in sorted(used - known)]


def queries() -> list[tuple[str, str]]:
    """Where each query stands, and the query; of dashboards and alerts."""
    boards = [
        (f"{board.title}: {panel.title}", query.expr)
        for board in DASHBOARDS
        for panel in board.panels
        for query in panel.queries
    ]
    return boards + [(rule["alert"], rule["expr"]) for rule in ALERTS]


@pytest.mark.parametrize(("where", "expr"), queries(), ids=lambda value: value[:50])
def test_every_query_names_metrics_and_labels_that_exist(where: str, expr: str) -> None:
    assert faults(expr) == [], where


@pytest.mark.parametrize(
    ("expr", "fault"),
    [
        ("sum(rate(turnwire_turns_acepted_total[5m]))", "no metric turnwire_turns_acepted_total"),
        ("sum by (tenant) (turnwire_turns_in_progress)", "no label tenant"),
        ('turnwire_turns_terminal_total{state="failed"}', "no label state"),
        ("turnwire_turns_in_progress_bucket", "no metric turnwire_turns_in_progress_bucket"),
    ],
)
def test_a_query_that_asks_for_what_is_not_there_is_noticed(expr: str, fault: str) -> None:
    assert fault in faults(expr)


def test_every_metric_is_shown_somewhere_or_raises_an_alert() -> None:
    asked = {name for _, expr in queries() for name in METRIC.findall(expr)}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} | asked

    assert {name for name in KNOWN if not re.search(r"_(bucket|sum|count)$", name)} - shown == set()


def test_the_dashboards_that_grafana_reads_are_the_ones_described_here() -> None:
    assert main(["--check"]) == 0
    folder = OBSERVABILITY / "grafana" / "dashboards"
    assert {f"deploy/observability/grafana/dashboards/{p.name}" for p in folder.iterdir()} == set(
        generated_files()
    )


def test_a_changed_description_makes_another_page(capsys: pytest.CaptureFixture[str]) -> None:
    panel = Panel("Title", (Query("up"), Query("up", "legend")), "Meaning.", width=24)
    page = json.loads(as_json(Dashboard("turnwire-x", "X", (panel, panel))))

    assert [p["gridPos"]["y"] for p in page["panels"]] == [0, 8]
    assert [t["refId"] for t in page["panels"][0]["targets"]] == ["A", "B"]
    capsys.readouterr()


def test_uids_are_unique_and_panels_lie_inside_the_grid_without_overlap() -> None:
    boards = [json.loads(text) for text in generated_files().values()]
    assert len({board["uid"] for board in boards}) == len(boards) == 5
    for board in boards:
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken
            taken |= cells
            assert panel["description"]


def test_what_grafana_is_given_fits_together() -> None:
    sources = yaml.safe_load(
        (OBSERVABILITY / "grafana/provisioning/datasources/turnwire.yml").read_text()
    )["datasources"]
    used = {
        panel["datasource"]["uid"]
        for text in generated_files().values()
        for panel in json.loads(text)["panels"]
    }
    assert used <= {source["uid"] for source in sources}
    (provider,) = yaml.safe_load(
        (OBSERVABILITY / "grafana/provisioning/dashboards/turnwire.yml").read_text()
    )["providers"]
    grafana = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"]
    folder = provider["options"]["path"]
    assert f"./deploy/observability/grafana/dashboards:{folder}:ro" in grafana["volumes"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == folder
    assert (OBSERVABILITY / "grafana/dashboards" / home.name).is_file()


def test_every_alert_has_a_severity_a_runbook_and_a_test_of_its_own() -> None:
    tested = {
        one["alertname"]
        for test in RULES_TEST["tests"]
        for one in test["alert_rule_test"]
        if one["exp_alerts"]
    }
    assert {rule["alert"] for rule in ALERTS} == tested
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("page", "ticket")
        runbook = ROOT / rule["annotations"]["runbook"]
        assert rule["alert"] in runbook.read_text(encoding="utf-8")
        assert rule["alert"] in (ROOT / "docs/runbooks/README.md").read_text(encoding="utf-8")


def test_every_runbook_says_what_to_look_at_what_to_do_and_when_it_is_over() -> None:
    named = {rule["annotations"]["runbook"].rpartition("/")[2] for rule in ALERTS}

    assert {page.name for page in RUNBOOKS} == named | {"README.md"}
    for page in RUNBOOKS:
        if page.name != "README.md":
            headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            assert headings[-3:] == ["Look", "Do", "Over when"], page.name


def test_log_events_that_runbooks_name_are_written_by_the_code() -> None:
    other = {*EVENTS_OF_TOPIC, *astuple(LATEST_NAMES)}
    named = {word for page in RUNBOOKS for word in DOTTED.findall(page.read_text("utf-8"))} - other
    code = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("libs", "services")
        for path in (ROOT / folder).rglob("*.py")
    )
    assert len(named) > 5
    assert {event for event in named if f'"{event}"' not in code} == set()


def test_panels_and_dashboards_that_runbooks_name_exist() -> None:
    titles = [board.title.partition(": ")[2] for board in DASHBOARDS]
    titles += [panel.title for board in DASHBOARDS for panel in board.panels]
    named = {word for page in RUNBOOKS for word in ITALIC.findall(page.read_text("utf-8"))}

    assert len(named) > 10
    assert {word for word in named if not any(t.startswith(word) for t in titles)} == set()


def test_variables_that_runbooks_name_are_settings() -> None:
    known = (ROOT / ".env.example").read_text("utf-8")
    named = {word for page in RUNBOOKS for word in VARIABLE.findall(page.read_text("utf-8"))}

    assert named
    for word in named:
        assert word.replace("<SERVICE>", "INGESTION") + "=" in known, word


@pytest.mark.parametrize(
    ("page", "reasons"),
    [
        ("failing-turns.md", REASONS[TurnState.FAILED]),
        (
            "dead-letters.md",
            {
                *(door.UNSIGNED, door.UNKNOWN_KEY, door.REVOKED_KEY),
                *(door.WRONG_MAC, door.FOREIGN_TENANT),
                *(screening.WRONG_TOPIC, screening.WRONG_KEY, WRONG_IDS),
                *(kind.reason for kind in UnreadableRecord.__subclasses__()),
                UnreadableRecord.reason,
                *(TurnMismatch.code, context_assembly.UnknownTurn.code),
                *(llm_gateway.UnknownTurn.code, llm_gateway.REPLAYED, BUG),
            },
        ),
        (
            "provider-trouble.md",
            {*re.findall(r"\w+", re.findall(r'outcome=~"([^"]+)"', PROVIDER_TROUBLED)[0])},
        ),
    ],
)
def test_a_runbook_explains_every_reason_that_there_is(page: str, reasons: set[str]) -> None:
    rows = re.findall(r"^\| (`.+?) \|", (ROOT / "docs/runbooks" / page).read_text(), re.MULTILINE)
    explained = {word for row in rows for word in re.findall(r"`([\w.]+)`", row)}

    assert explained == reasons


def test_commands_that_pages_for_operators_name_exist() -> None:
    pages = [*RUNBOOKS, *(ROOT / "docs" / f"{name}.md" for name in FOR_OPERATORS)]
    named = {
        command for page in pages for command in COMMAND.findall(page.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert {command for command in named if not is_command(command)} == set()
    assert not is_command("turns mend TURN_ID")
    assert not is_command("outboxes")
    assert not is_command("dlq ls --dry")


def is_command(line: str) -> bool:
    """Whether the command line knows the words up to the first argument, and every option."""
    command: Any = get_command(build())
    options = {option for names, _ in EVERYWHERE for option in names.split(", ")}
    words = [word for word in line.split() if not word.startswith("-")]
    while words and (inner := getattr(command, "commands", None)) is not None:
        if words[0] not in inner:
            return False
        command = inner[words.pop(0)]
        options |= {option for parameter in command.params for option in parameter.opts}
    return options.issuperset(word for word in line.split() if word.startswith("-"))


def test_prometheus_scrapes_every_service_under_the_name_that_rules_use() -> None:
    config = yaml.safe_load((OBSERVABILITY / "prometheus/prometheus.yml").read_text())
    jobs = {job["job_name"] for job in config["scrape_configs"]}
    (down,) = [rule["expr"] for rule in ALERTS if rule["alert"] == "TurnwireServiceDown"]

    serving = set(SERVICES) - {"ops"}
    assert serving <= jobs
    for name in serving:
        assert name in down
