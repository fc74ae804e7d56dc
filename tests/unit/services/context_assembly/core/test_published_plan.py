"""The published schema of plans: its examples are plans, and what is stored fits it."""

import json

import pytest
from jsonschema import Draft202012Validator

from schemas.export import ROOT, json_schemas
from schemas.prompt_plan import (
    SECTIONS,
    PromptPlanV1,
    TextMissing,
    checksum,
    json_schema,
    render,
)
from services.context_assembly.core.document import to_document
from services.context_assembly.core.payload import seal
from tests.unit.services.context_assembly.core.builders import messages, text_of
from tests.unit.services.context_assembly.core.test_data import EVERY, planned, rendered

PATH = "schemas/json/prompt_plan.v1.schema.json"
EXAMPLES = json_schema()["examples"]


def test_the_schema_is_published_as_the_code_has_it() -> None:
    published = json.loads((ROOT / PATH).read_text(encoding="utf-8"))

    assert published == json_schemas()[PATH] == json_schema()
    Draft202012Validator.check_schema(published)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_is_a_whole_plan(number: int) -> None:
    Draft202012Validator(json_schema()).validate(EXAMPLES[number])
    plan = PromptPlanV1.model_validate(EXAMPLES[number])

    assert plan.model_dump(mode="json", by_alias=True) == EXAMPLES[number]
    assert [part.section for part in plan.budget.sections] == list(SECTIONS)
    assert sum(block.tokens for block in plan.blocks) == plan.budget.used <= plan.budget.tokens


def test_the_examples_show_trimming_data_and_instructions() -> None:
    first, second = (PromptPlanV1.model_validate(example) for example in EXAMPLES)

    assert first.history.trimmed > 0
    assert first.excluded_counts == {"budget": first.history.trimmed}
    assert second.nonce is not None
    assert len(second.instructions) == 3
    assert {block.trust for block in second.blocks} >= {"operator", "derived", "data", "user"}


def test_what_is_stored_fits_the_schema() -> None:
    sealed, _ = rendered(planned(EVERY, messages(5, 5)))

    Draft202012Validator(json_schema()).validate(to_document(sealed))


def test_a_missing_text_is_named() -> None:
    rows = messages(5, 5)
    sealed, _ = rendered(planned([], rows))

    with pytest.raises(TextMissing) as caught:
        render(to_document(sealed), {str(rows[0].message_id): "x"})
    assert caught.value.block_id == str(rows[1].message_id)


def test_a_changed_text_is_found_by_its_checksum() -> None:
    rows = messages(5, 5)
    plan = planned([], rows)
    sealed, _ = seal(plan, {block.id: text_of(block.id) for block in plan.blocks})

    for block in to_document(sealed)["blocks"]:
        assert block["checksum"] == checksum(text_of(block["id"]))
        assert block["checksum"] != checksum(text_of(block["id"]) + "!")
