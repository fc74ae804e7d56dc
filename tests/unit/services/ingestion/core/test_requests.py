"""How a request is read: cleaned, fingerprinted, its ids recomputed."""

import hashlib
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

import pytest

from libs import ids
from schemas.envelope import Data, Event
from schemas.requests import (
    AnswerRequestedV1,
    ConversationCreateRequestedV1,
    ConversationDeleteRequestedV1,
    ConversationRestoreRequestedV1,
    ConversationUpdateRequestedV1,
    FirstMessage,
    MessageDeleteRequestedV1,
    MessageEditRequestedV1,
    TextPart,
    TurnRequestedV1,
)
from schemas.turns import TurnCancelRequestedV1
from services.ingestion.core.fingerprint import fingerprint
from services.ingestion.core.requests import Wish, read_request, wrong_ids

TENANT, PRINCIPAL, CONVERSATION = UUID(int=1), UUID(int=2), UUID(int=3)
REQUEST, TURN, MESSAGE = UUID(int=4), UUID(int=5), UUID(int=6)
WHO: dict[str, Any] = {"request_id": REQUEST, "principal_id": PRINCIPAL}
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def event(data: Data, conversation: UUID, turn: UUID) -> Event[Any]:
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


def edited(text: str = "hello", **fields: Any) -> Event[Any]:
    data = MessageEditRequestedV1(
        request_id=REQUEST,
        principal_id=PRINCIPAL,
        key="k",
        message_id=fields.pop("message_id", MESSAGE),
        parts=(TextPart(text=text),),
        **fields,
    )
    return event(data, CONVERSATION, ids.turn_id(TENANT, CONVERSATION, "k"))


def answered(
    kind: Literal["regenerate", "continue"], turn: UUID = TURN, **fields: Any
) -> Event[Any]:
    data = AnswerRequestedV1(
        request_id=REQUEST,
        principal_id=PRINCIPAL,
        key="k",
        kind=kind,
        turn_id=turn,
        **fields,
    )
    return event(data, CONVERSATION, ids.turn_id(TENANT, CONVERSATION, "k"))


def test_no_two_wishes_under_one_key_have_the_same_fingerprint() -> None:
    wishes = [
        posted(),
        posted(policy="branch"),
        edited(),
        edited("other"),
        edited(message_id=UUID(int=9)),
        edited(policy="branch"),
        answered("regenerate"),
        answered("continue"),
        answered("regenerate", UUID(int=9)),
        answered("regenerate", options={"a": 1}),
        answered("regenerate", model="m"),
    ]

    assert len({read_request(wish).fingerprint for wish in wishes}) == len(wishes)


def test_an_edit_is_a_message_about_a_message() -> None:
    request = read_request(edited("he\0llo", said_at=NOW))

    assert (request.wish, request.message_id, request.turn_id) == ("edit", MESSAGE, None)
    assert request.message is not None
    assert (request.message.text, request.said_at) == ("hello", NOW)
    empty = read_request(edited(" "))
    assert empty.fault is not None
    assert empty.fault.code == "validation-error"


@pytest.mark.parametrize("kind", ["regenerate", "continue"])
def test_another_answer_says_nothing_and_is_about_a_turn(
    kind: Literal["regenerate", "continue"],
) -> None:
    request = read_request(answered(kind, options={"a": 1}))

    assert (request.wish, request.turn_id, request.message) == (kind, TURN, None)
    assert request.asked is not None
    assert (request.asked.key, request.asked.options) == ("k", {"a": 1})


def test_what_is_about_a_conversation_is_correlated_with_it() -> None:
    asks: list[tuple[Data, Wish]] = [
        (MessageDeleteRequestedV1(**WHO, message_id=MESSAGE), "delete_message"),
        (ConversationUpdateRequestedV1(**WHO, title="t\0o", policy="queue"), "update"),
        (ConversationDeleteRequestedV1(**WHO), "delete"),
        (ConversationRestoreRequestedV1(**WHO), "restore"),
    ]
    for data, wish in asks:
        good = event(data, CONVERSATION, CONVERSATION)
        assert not wrong_ids(good)
        assert wrong_ids(event(data, CONVERSATION, TURN))
        assert read_request(good).wish == wish

    update = read_request(event(asks[1][0], CONVERSATION, CONVERSATION))
    assert (update.title, update.policy) == ("to", "queue")


def test_a_cancel_at_the_door_names_its_request_and_who_asks() -> None:
    good = event(TurnCancelRequestedV1(**WHO, reason="no_subscriber"), CONVERSATION, TURN)

    assert not wrong_ids(good)
    request = read_request(good)
    assert (request.wish, request.turn_id, request.principal_id) == ("cancel", TURN, PRINCIPAL)
    for lacking in (
        TurnCancelRequestedV1(reason="user"),
        TurnCancelRequestedV1(reason="user", request_id=REQUEST),
        TurnCancelRequestedV1(reason="user", principal_id=PRINCIPAL),
    ):
        assert wrong_ids(event(lacking, CONVERSATION, TURN))


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
