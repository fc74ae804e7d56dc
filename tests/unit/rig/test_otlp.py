"""The judge of traces sees what is wrong with one, or it could not say that nothing is."""

from dataclasses import replace

import pytest

from tests.rig.otlp import Span, breaks

ROOT = Span("ingestion", "turn", 1, "t", "a", "", 0, 9, {}, failed=False)
CHILD = replace(ROOT, name="chat", span_id="b", parent_id="a")


def test_one_tree_is_whole():
    assert breaks([ROOT, CHILD, replace(CHILD, span_id="c", parent_id="b")]) == []
    assert breaks([replace(ROOT, parent_id="client"), CHILD], above="client") == []


@pytest.mark.parametrize(
    ("spans", "fault"),
    [
        ([ROOT, replace(CHILD, parent_id="lost")], "below lost, which nobody sent"),
        ([ROOT, replace(CHILD, parent_id="")], "2 roots: ['chat', 'turn']"),
        ([replace(ROOT, parent_id="b"), CHILD], "0 roots"),
        ([], "0 roots"),
    ],
)
def test_what_breaks_a_trace_is_named(spans: list[Span], fault: str):
    assert fault in " ".join(breaks(spans))
