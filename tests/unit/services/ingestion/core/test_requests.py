"""How a request is read: cleaned, fingerprinted, its ids recomputed."""

import hashlib
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from libs import ids
from schemas.envelope import Event
from schemas.requests import (
    ConversationCreateRequestedV1,
    FirstMessage,
    TextPart,
    TurnRequestedV1,
)
from services.ingestion.core.fingerprint import fingerprint
from services.ingestion.core.requests import read_request, wrong_ids

TENANT, PRINCIPAL, CONVERSATION = UUID(int=1), UUID(int=2), UUID(int=3)
REQUEST = UUID(int=4)
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def event(
    data: ConversationCreateRequestedV1 | TurnRequestedV1, conversation: UUID, turn: UUID
) -> Event[Any]:
    return Event(REQUEST, "test", TENANT, conversation, turn, NOW, data)


def posted(text: str = "hello", **fields: Any) -> Event[Any]:
    data = TurnRequestedV1(
        request_id=REQUEST,
        principal_id=PRINCIPAL,
        key="k",
        parts=(TextPart(text=text),),
        **fields,
    )
    return event(data, CONVERSATION, ids.turn_id(TENANT, CONVERSATION, "k"))


def test_the_fingerprint_is_of_this_exact_canonical_form() -> None:
    # Another form would turn every retry over a deployment into a conflict.
    canonical = (
        '{"kind":"turn.requested","model":"m","options":{"a":[true,null],"b":1},'
        '"parts":[{"text":"grün","type":"text"}],"v":1}'
    )
    found = fingerprint(
        "turn.requested",
        texts=["grün"],
        policy=None,
        parent=None,
        model="m",
        settings={"options": {"b": 1, "a": [True, None]}},
    )

    assert found == hashlib.sha256(canonical.encode()).hexdigest()


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "other"},
        {"policy": "serialize"},
        {"parent": UUID(int=9)},
        {"model": "m"},
        {"options": {"a": 1}},
    ],
)
def test_every_stated_field_is_part_of_the_fingerprint(fields: dict[str, Any]) -> None:
    assert read_request(posted(**fields)).fingerprint != read_request(posted()).fingerprint


def test_what_is_no_part_of_the_request_is_no_part_of_the_fingerprint() -> None:
    said = posted(said_at=NOW, time_zone="Europe/Berlin")

    assert read_request(said).fingerprint == read_request(posted()).fingerprint


def test_text_is_cleaned_before_it_is_fingerprinted_and_measured() -> None:
    request = read_request(posted("he\0llo"))

    assert request.fingerprint == read_request(posted("hello")).fingerprint
    assert request.message is not None
    assert (request.message.text, request.message.nul_removed) == ("hello", 1)
    assert request.message.length == 5


def test_what_a_front_end_has_taken_out_is_counted_and_no_other_message() -> None:
    data = posted().data.model_copy(
        update={"parts": (TextPart(text="hel", nul_removed=2), TextPart(text="l\0o"))}
    )
    request = read_request(event(data, CONVERSATION, posted().correlation_id))

    assert request.message is not None
    assert (request.message.text, request.message.nul_removed) == ("hel\nlo", 3)
    plain = posted().data.model_copy(update={"parts": (TextPart(text="hel"), TextPart(text="lo"))})
    assert (
        request.fingerprint
        == read_request(event(plain, CONVERSATION, posted().correlation_id)).fingerprint
    )


def test_ids_must_follow_from_their_causes() -> None:
    good = posted()
    assert not wrong_ids(good)
    assert wrong_ids(event(good.data, CONVERSATION, UUID(int=99)))
    assert wrong_ids(event(good.data, UUID(int=98), good.correlation_id))
    assert wrong_ids(
        Event(UUID(int=97), "test", TENANT, CONVERSATION, good.correlation_id, NOW, good.data)
    )


def test_a_conversation_made_with_a_key_is_named_by_it() -> None:
    conversation = ids.conversation_id(TENANT, PRINCIPAL, "k")
    turn = ids.turn_id(TENANT, conversation, "k")
    message = FirstMessage(turn_id=turn, parts=(TextPart(text="hi"),))
    data = ConversationCreateRequestedV1(
        request_id=REQUEST, principal_id=PRINCIPAL, key="k", message=message
    )

    assert not wrong_ids(event(data, conversation, turn))
    assert wrong_ids(event(data, CONVERSATION, turn))
    keyless = data.model_copy(update={"key": None, "message": None})
    assert not wrong_ids(event(keyless, CONVERSATION, CONVERSATION))
