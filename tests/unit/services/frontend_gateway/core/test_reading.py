"""Keys, cursors, names and frames: what clients write, read exactly."""

import pytest

from schemas.streams import Entry, EntryId
from services.frontend_gateway.core.answers import refusal
from services.frontend_gateway.core.cursors import page, stream_position, uuid_of
from services.frontend_gateway.core.keys import idempotency_key
from services.frontend_gateway.core.names import nearest
from services.frontend_gateway.core.problems import KINDS, Problem, document
from services.frontend_gateway.core.sse import frame


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ("abc", "abc"),
        ('"abc"', "abc"),
        ('  "abc"\t', "abc"),
        ('"a b"', "a b"),
        (r'"say \"hi\" \\ bye"', 'say "hi" \\ bye'),
        ("8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"),
        ("a:b/c=d+e~f", "a:b/c=d+e~f"),
        ("x" * 255, "x" * 255),
    ],
)
def test_quoted_and_bare_keys_are_read(raw: str, key: str) -> None:
    assert idempotency_key([raw], required=True) == key


@pytest.mark.parametrize(
    "raw",
    ["", '""', '"', '"a', 'a"', "a b", "a,b", "a;b=1", '"a";b', '"a\\n"', "\x7f", "é", "x" * 256],
)
def test_other_spellings_are_refused(raw: str) -> None:
    with pytest.raises(Problem) as refused:
        idempotency_key([raw], required=False)
    assert refused.value.slug == "idempotency-key-invalid"


def test_a_doubled_header_is_refused_and_a_missing_one_only_where_required() -> None:
    with pytest.raises(Problem, match="more than once"):
        idempotency_key(["a", "a"], required=True)
    assert idempotency_key([], required=False) is None
    with pytest.raises(Problem) as refused:
        idempotency_key([], required=True)
    assert refused.value.slug == "idempotency-key-missing"


def test_ids_have_one_spelling() -> None:
    text = "8e03978e-40d5-43e8-bc93-6894a57f9324"
    assert str(uuid_of(text)) == text
    assert uuid_of(text.upper()) is None
    assert uuid_of(f"{{{text}}}") is None
    assert uuid_of(text.replace("-", "")) is None


def test_a_page_has_defaults() -> None:
    assert page({}, default_order="desc").descending
    assert page({"order": "asc"}, default_order="desc").limit == 20


def test_the_position_in_the_header_wins() -> None:
    assert stream_position("1-2", "1-9") == EntryId(1, 2)
    assert stream_position(None, "1-9") == EntryId(1, 9)
    assert stream_position(None, None) is None


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("contnet", ("content", "policy"), "content"),
        ("Content", ("content", "policy"), "content"),
        ("zzz", ("content", "policy"), None),
        ("c" * 1000, ("content",), None),
    ],
)
def test_the_nearest_name_is_suggested(
    name: str, known: tuple[str, ...], found: str | None
) -> None:
    assert nearest(name, known) == found


def test_a_line_end_in_data_cannot_end_the_event() -> None:
    framed = frame(Entry(EntryId(1, 2), "usage", b'{"a":\r\n1,\n"b":\r2}'))
    assert framed == (b'id: 1-2\nevent: usage\ndata: {"a":\ndata: 1,\ndata: "b":\ndata: 2}\n\n')


@pytest.mark.parametrize("event", ["", "done\n", "a b", "done\ndata: x", "Done"])
def test_an_event_name_that_is_none_is_never_framed(event: str) -> None:
    with pytest.raises(ValueError, match="event name"):
        frame(Entry(EntryId(1, 2), event, b"{}"))


def test_every_kind_of_problem_is_an_error_with_advice() -> None:
    for slug, kind in KINDS.items():
        assert slug == kind.slug
        assert 400 <= kind.status < 600
        assert kind.advice.endswith(".")


def test_a_problem_names_its_page_and_its_request() -> None:
    problem = Problem("not-found", "There is no such turn.", turn_id="t")
    told = document(problem, base_url="http://h", instance="/v1/x", request_id="r")
    assert told["type"] == "http://h/problems/not-found"
    assert (told["status"], told["code"], told["retryable"]) == (404, "not-found", False)
    assert (told["request_id"], told["turn_id"], told["instance"]) == ("r", "t", "/v1/x")


def test_a_refusal_nobody_knows_is_our_mistake() -> None:
    problem = refusal("rejected", {"code": "brand-new", "detail": "?"})
    assert problem is not None
    assert problem.kind.status == 500
    assert refusal("accepted", None) is None
