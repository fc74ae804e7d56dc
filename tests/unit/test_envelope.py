"""The codec: what it reads, what it refuses and by which name."""

import uuid
from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.envelope import MAX_NESTING, Event, encode, headers
from schemas.errors import MalformedEvent, UnknownEvent, UnsupportedVersion
from schemas.registry import decode
from schemas.requests import TextPart, TurnRequestedV1


def request(text: str, *, options: dict[str, object] | None = None) -> Event[TurnRequestedV1]:
    request_id = uuid.uuid4()
    return Event(
        id=request_id,
        source="test",
        tenant_id=uuid.uuid4(),
        conversation_id=uuid.uuid4(),
        correlation_id=uuid.uuid4(),
        occurred_at=datetime.now(UTC),
        traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
        data=TurnRequestedV1(
            request_id=request_id,
            principal_id=uuid.uuid4(),
            key="k",
            parts=(TextPart(text=text),),
            options=options,
        ),
    )


TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"))


@given(TEXT)
def test_what_is_encoded_is_decoded_again(text: str) -> None:
    event = request(text)

    assert decode(encode(event)) == event


def test_headers_repeat_the_envelope() -> None:
    event = request("hello")

    assert headers(event) == {
        "ce_id": str(event.id),
        "ce_type": "turn.requested",
        "ce_source": "test",
        "event-version": "1",
        "traceparent": event.traceparent,
    }


@pytest.mark.parametrize("raw", [None, b"", b"\xff\x00", b"[]", b"{}", b"null", b'"text"'])
def test_what_is_no_event_is_malformed(raw: bytes | None) -> None:
    with pytest.raises(MalformedEvent):
        decode(raw)


def test_an_unknown_type_and_a_later_version_have_names_of_their_own() -> None:
    fields = orjson.loads(encode(request("hello")))

    with pytest.raises(UnknownEvent):
        decode(orjson.dumps({**fields, "type": "never.heard_of"}))
    with pytest.raises(UnsupportedVersion):
        decode(orjson.dumps({**fields, "version": 2}))


def test_an_error_never_quotes_the_record() -> None:
    fields = orjson.loads(encode(request("hello")))
    fields["data"]["parts"] = [{"type": "text", "text": ["the canary sings"]}]

    with pytest.raises(MalformedEvent) as caught:
        decode(orjson.dumps(fields))

    assert "canary" not in str(caught.value)
    assert "parts.0.text" in str(caught.value)


def nested(levels: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def test_nesting_is_bounded_and_brackets_inside_text_do_not_count() -> None:
    with pytest.raises(MalformedEvent, match="nested"):
        decode(encode(request("hello", options=nested(MAX_NESTING))))

    brackets = request('[{"' * 500)
    assert decode(encode(brackets)) == brackets


def test_a_nul_is_refused_and_a_backslash_before_u0000_is_not_one() -> None:
    with pytest.raises(MalformedEvent, match="U\\+0000"):
        decode(encode(request("a\x00b")))

    literal = request("a\\u0000b")
    assert decode(encode(literal)) == literal
