"""Generated reference pages are current, and the site is built of documents without a dead link."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.docs_reference import generated_files, main, openapi, superfluous
from deploy.docs_schemas import definitions, kind_of
from deploy.site_hooks import without_links_outside
from schemas.registry import ALL_EVENTS
from services.frontend_gateway.core.problems import KINDS

ROOT = Path(__file__).resolve().parents[3]
BUILD_TIMEOUT_S = 90


def test_the_pages_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_every_kind_of_problem_has_a_page_that_says_what_to_do_and_no_other_has() -> None:
    pages = generated_files()
    for kind in KINDS.values():
        page = pages[f"docs/reference/problems/{kind.slug}.md"]
        assert kind.advice in page
        assert f"`{kind.slug}`" in page
        assert f"({kind.slug}.md)" in pages["docs/reference/problems/README.md"]
    assert superfluous() == []


def test_the_page_of_the_interface_links_problems_and_the_page_of_metrics_has_all() -> None:
    pages = generated_files()

    assert "[validation-error](problems/validation-error.md)" in pages["docs/reference/http.md"]
    assert pages["docs/reference/metrics.md"].count("| `turnwire_") > 30


def test_every_body_and_every_event_has_its_fields_and_every_link_to_one_arrives() -> None:
    pages = generated_files()
    bodies, events = pages["docs/reference/bodies.md"], pages["docs/reference/events.md"]
    for name, schema in openapi()["components"]["schemas"].items():
        section = bodies.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert all(f"| `{field}` |" in section for field in schema.get("properties", {})), name
    for event in ALL_EVENTS:
        section = events.partition(f"\n## {event.__name__}\n")[2].partition("\n## ")[0]
        assert all(f"| `{field}` |" in section for field in event.model_fields), event
        assert f"`{event.TYPE}` | {event.VERSION} |" in events
    linked = re.findall(r"bodies\.md#(\w+)", pages["docs/reference/http.md"])
    assert len(linked) > 30
    for page, anchors in ((bodies, linked), (bodies, []), (events, [])):
        named = {name.lower() for name in re.findall(r"^## (\w+)$", page, re.MULTILINE)}
        assert {*anchors, *re.findall(r"\(#(\w+)\)", page)} <= named


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "string", "maxLength": 5}, "text, at most 5 characters"),
        ({"type": "string", "format": "uuid"}, "UUID"),
        (
            {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
            "whole number, ≥ 1 or null",
        ),
        ({"type": "array", "items": {"$ref": "#/x/Part"}}, "list of [Part](#part)"),
        ({"enum": ["a", "b"], "type": "string"}, "`a` or `b`"),
        ({}, "anything"),
    ],
)
def test_a_schema_is_told_in_words(schema: dict[str, object], told: str) -> None:
    assert kind_of(schema) == told
    table = definitions({"X": {"properties": {"f": schema}, "required": ["f"]}}, ["X"])
    assert f"| `f` | {told} |  |" in table


def test_the_first_page_leads_to_every_other() -> None:
    first = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    pages |= {f"reference/{path.name}" for path in (ROOT / "docs/reference").glob("*.md")}

    assert {page for page in pages if f"({page})" not in first} == set()


@pytest.mark.parametrize(
    ("page", "text", "fitted"),
    [
        ("turn.md", "[a](../services/x.py)", "a"),
        ("runbooks/README.md", "[a](../../deploy/x.yml)", "a"),
        ("runbooks/README.md", "[a](../analysts.md)", "[a](../analysts.md)"),
        ("README.md", "[a](turn.md#part)", "[a](turn.md#part)"),
        ("README.md", "[a](runbooks)", "[a](runbooks/README.md)"),
        ("README.md", "[a](https://example.com/x)", "[a](https://example.com/x)"),
    ],
)
def test_links_out_of_the_documents_become_text(page: str, text: str, fitted: str) -> None:
    assert without_links_outside(text, page) == fitted


def test_the_site_is_built_without_a_warning_in_four_parts(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )

    assert built.returncode == 0, built.stderr
    page = (tmp_path / "start" / "index.html").read_text(encoding="utf-8")
    for part in ("Start", "How to", "How it works", "Reference"):
        assert part in page
    assert (tmp_path / "reference/problems/stale-parent/index.html").is_file()
    assert (tmp_path / "asyncapi.yaml").is_file()
    events = (tmp_path / "reference/events/index.html").read_text(encoding="utf-8")
    assert 'href="../../asyncapi.yaml"' in events
    assert 'id="turnendedv1"' in events
    interface = (tmp_path / "reference/http/index.html").read_text(encoding="utf-8")
    assert 'href="../../openapi.json"' in interface
    assert json.loads((tmp_path / "openapi.json").read_text(encoding="utf-8")) == openapi()
    built_pages = {page.parent.name for page in tmp_path.rglob("index.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"} <= built_pages
    assert "https://fonts." not in page
