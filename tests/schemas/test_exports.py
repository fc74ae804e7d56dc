"""What is generated from the contract is committed as generated."""

import json
from pathlib import Path

import pytest

from schemas.export import (
    ROOT,
    broken_promises,
    generated_files,
    json_schemas,
    main,
    stale_files,
)
from schemas.topic_files import load_topics


def test_the_committed_schemas_and_documents_are_current() -> None:
    assert stale_files(generated_files(load_topics())) == []


def test_no_published_event_version_was_changed_in_a_breaking_way() -> None:
    assert broken_promises() == []


def test_no_schema_is_left_over_from_an_event_that_is_gone() -> None:
    committed = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("schemas/json/*")}
    assert committed == set(json_schemas())


def test_an_edited_and_a_missing_file_are_stale(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text("{}\n")
    (tmp_path / "edited.json").write_text("{ }\n")
    files = {"kept.json": "{}\n", "edited.json": "{}\n", "missing.json": "{}\n"}

    assert stale_files(files, tmp_path) == ["edited.json", "missing.json"]


def test_a_breaking_change_and_a_vanished_version_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "schemas" / "json"
    folder.mkdir(parents=True)
    name = "schemas/json/turn.accepted.v1.read.schema.json"
    schema = json_schemas()[name]
    schema["properties"]["seen"] = {"type": "boolean"}
    (tmp_path / name).write_text(json.dumps(schema))
    (folder / "turn.applauded.v1.read.schema.json").write_text("{}")

    broken = broken_promises(tmp_path)

    assert broken == [
        f"{name}: $.properties.seen was removed",
        "schemas/json/turn.applauded.v1.read.schema.json: the event version is gone; "
        "it must stay readable for ever",
    ]


def test_the_command_says_that_nothing_is_stale(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert capsys.readouterr().err == ""
