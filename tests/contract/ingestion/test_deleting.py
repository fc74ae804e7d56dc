"""Messages and conversations that shall be gone, and some that come back, on a real Postgres."""

from uuid import UUID, uuid4

import psycopg
import pytest

from libs import ids
from libs.errors import Terminal
from tests.contract.ingestion.rig import (
    TENANT,
    Rig,
    answer_again,
    cancel,
    create,
    delete,
    delete_message,
    edit,
    generated,
    post,
    restore,
    update,
)
from tests.contract.ingestion.stages import (
    answer,
    answered,
    complete,
    ends,
    opened,
    outcome,
    question,
    state,
    waiting,
)

pytestmark = pytest.mark.postgres

ACCEPTED = ("accepted", None)
GONE = ("not_found", "not-found")
IN_PROGRESS = ("rejected", "turn-in-progress")


def told(rig: Rig, type_: str) -> list[tuple[UUID, object]]:
    return [(e.correlation_id, e.data) for e in rig.ingestion.relay.events if e.type == type_]


# Messages. --------------------------------------------------------------------------------------


async def test_a_deleted_answer_is_gone_from_rows_stream_and_every_list(rig: Rig) -> None:
    conversation, (turn,) = await answered(rig, "a")
    request = delete_message(conversation, answer(turn))
    assert await rig.ingestion.live.exists(turn)

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == ACCEPTED
    ((correlation, data),) = told(rig, "message.deleted")
    assert correlation == turn
    assert data == type(data)(message_id=answer(turn), turn_id=turn, role="assistant")
    assert not await rig.ingestion.live.exists(turn)
    assert rig.one("select answer_deleted_at is not null from ingestion.turns")
    (row,) = rig.rows("select is_history, deleted_at from ingestion.messages where seq = 2")
    assert (row["is_history"], row["deleted_at"] is None) == (False, False)
    with psycopg.connect(rig.test_database.url_of("frontend_gateway")) as gateway:
        gateway.execute("select set_config('app.tenant_ids', %s, true)", (str(TENANT),))
        texts = "select * from ingestion.message_texts_v1(%s, %s)"
        assert gateway.execute(texts, ([TENANT], [answer(turn)])).fetchall() == []


async def test_a_deleted_question_leaves_its_answer_and_its_stream(rig: Rig) -> None:
    conversation, (turn,) = await answered(rig, "a")

    await rig.ingestion.requests.handle([delete_message(conversation, question(turn))])

    ((_, data),) = told(rig, "message.deleted")
    assert data == type(data)(message_id=question(turn), turn_id=turn, role="user")
    assert await rig.ingestion.live.exists(turn)
    assert rig.one("select answer_deleted_at is null from ingestion.turns")
    assert rig.one("select is_history from ingestion.messages where seq = 2")


async def test_an_archived_message_is_deleted_where_it_lies(rig: Rig) -> None:
    conversation, (turn,) = await answered(rig, "a")
    rig.rows("select ingestion.op_archive(%s, 3, 'somebody')", conversation)
    request, again = (delete_message(conversation, answer(turn)) for _ in range(2))

    await rig.ingestion.requests.handle([request, again])

    assert (outcome(rig, request), outcome(rig, again)) == (ACCEPTED, GONE)
    assert rig.one("select deleted_at is not null from ingestion.archived_messages where seq = 2")
    assert rig.one("select answer_deleted_at is not null from ingestion.turns")
    assert len(told(rig, "message.deleted")) == 1


@pytest.mark.parametrize(
    "case", ["running", "queued", "unknown", "foreign", "deleted", "continued"]
)
async def test_what_cannot_be_deleted_says_why_and_nothing_changes(rig: Rig, case: str) -> None:
    conversation, (running, queued) = await opened(rig, "a", "b")
    message, expected = question(running), IN_PROGRESS
    principal = None
    if case == "queued":
        message = question(queued)
    elif case == "unknown":
        message, expected = uuid4(), GONE
    elif case == "foreign":
        principal, expected = uuid4(), GONE
    elif case == "deleted":
        await complete(rig, conversation, running)
        await rig.ingestion.requests.handle([delete_message(conversation, message)])
        expected = GONE
    elif case == "continued":
        await complete(rig, conversation, running)
        await rig.ingestion.requests.handle([answer_again(conversation, "x", running)])
    request = (
        delete_message(conversation, message)
        if principal is None
        else delete_message(conversation, message, principal_id=principal)
    )
    before = rig.rows("select id, deleted_at from ingestion.messages order by id")

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == expected
    assert rig.rows("select id, deleted_at from ingestion.messages order by id") == before


async def test_a_superseded_message_is_deleted_and_its_edit_stays(rig: Rig) -> None:
    conversation, (turn,) = await answered(rig, "a")
    edited = ids.turn_id(TENANT, conversation, "x")
    await rig.ingestion.requests.handle([edit(conversation, "x", question(turn))])
    request = delete_message(conversation, question(turn))

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == ACCEPTED
    await complete(rig, conversation, edited)
    assert state(rig, edited) == ("completed", None)


# Conversations. ---------------------------------------------------------------------------------


async def test_a_deleted_conversation_stops_its_turns_and_answers_to_nobody(rig: Rig) -> None:
    conversation, (running, queued) = await opened(rig, "a", "b")
    request = delete(conversation)

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == ACCEPTED
    stopped = {(turn, data.reason) for turn, data in told(rig, "turn.cancel_requested")}  # type: ignore[attr-defined]
    assert stopped == {(running, "conversation_deleted"), (queued, "conversation_deleted")}
    ((correlation, data),) = told(rig, "conversation.deleted")
    purge_at = rig.one("select purge_at from ingestion.conversations")
    assert (correlation, data.purge_at) == (conversation, purge_at)  # type: ignore[attr-defined]
    seconds = "select extract(epoch from purge_at - deleted_at)::int from ingestion.conversations"
    assert rig.one(seconds) == 600
    late = [
        post(conversation, "c"),
        post(conversation, "a", "text a"),
        edit(conversation, "d", question(running)),
        answer_again(conversation, "e", running),
        cancel(conversation, running),
        delete_message(conversation, question(running)),
        update(conversation, title="x"),
        delete(conversation),
    ]
    await rig.ingestion.requests.handle(late)
    assert {outcome(rig, one) for one in late} == {GONE}
    rig.rows("update ingestion.open_turns set cancel_at = now() - interval '5 seconds'")
    await rig.ingestion.canceller.sweep()
    assert {state(rig, turn) for turn in (running, queued)} == {
        ("cancelled", "conversation_deleted")
    }
    assert waiting(rig, conversation) == []


async def test_a_restored_conversation_goes_on_where_it_was(rig: Rig) -> None:
    conversation, (turn,) = await answered(rig, "a")
    request, again = restore(conversation), restore(conversation)
    following = post(conversation, "b")

    await rig.ingestion.requests.handle([delete(conversation)])
    await rig.ingestion.requests.handle([request, again, following])

    assert {outcome(rig, one) for one in (request, again, following)} == {ACCEPTED}
    assert len(told(rig, "conversation.restored")) == 1
    assert rig.one("select deleted_at is null and purge_at is null from ingestion.conversations")
    assert rig.one("select parent_turn_id from ingestion.turns where key = 'b'") == turn


async def test_a_conversation_deleted_twice_is_told_twice(rig: Rig) -> None:
    conversation, _ = await answered(rig, "a")

    await rig.ingestion.requests.handle([delete(conversation), restore(conversation)])
    await rig.ingestion.requests.handle([delete(conversation)])

    assert len({e.id for e in rig.ingestion.relay.events}) == 3
    assert rig.one("select deleted_at is not null from ingestion.conversations")


@pytest.mark.parametrize("case", ["too late", "unknown", "foreign"])
async def test_what_cannot_be_restored_says_why(rig: Rig, case: str) -> None:
    conversation, _ = await answered(rig, "a")
    await rig.ingestion.requests.handle([delete(conversation)])
    request, expected = restore(conversation), GONE
    if case == "too late":
        rig.rows("update ingestion.conversations set purge_at = now() - interval '1 second'")
        expected = ("rejected", "restore-expired")
    elif case == "unknown":
        request = restore(uuid4())
    else:
        request = restore(conversation, principal_id=uuid4())

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == expected
    assert rig.one("select deleted_at is not null from ingestion.conversations")


async def test_late_news_of_a_purged_conversation_is_dropped_and_nonsense_is_not(
    rig: Rig,
) -> None:
    conversation, (turn,) = await answered(rig, "a")
    late = generated(conversation, turn, rig.result(turn, "late", attempt=2))
    nonsense = generated(uuid4(), turn, rig.result(turn, "late", attempt=3))
    await rig.ingestion.requests.handle([delete(conversation)])
    rig.rows("update ingestion.conversations set purge_at = now() - interval '1 second'")
    await rig.ingestion.database.fetch("select ingestion.op_purge_conversations(10)")
    elsewhere, (other,) = await opened(rig, "k")
    good = generated(elsewhere, other, rig.result(other, "good"))

    await rig.ingestion.generation.handle([late, good])

    assert state(rig, other) == ("completed", None)
    assert ends(rig, other) == 1
    assert (
        rig.one("select count(*) from ingestion.messages where conversation_id = %s", conversation)
        == 0
    )
    assert rig.one("select count(*) from ingestion.inbox where event_id = %s", late.event.id) == 1
    with pytest.raises(Terminal, match="fit no row"):
        await rig.ingestion.generation.handle([nonsense])


async def test_a_deleted_conversation_is_not_made_again_by_its_key(rig: Rig) -> None:
    conversation = ids.conversation_id(TENANT, create(uuid4()).event.data.principal_id, "k")
    again = create(conversation, key="k")
    await rig.ingestion.requests.handle([create(conversation, key="k"), delete(conversation)])

    await rig.ingestion.requests.handle([again])

    assert outcome(rig, again) == GONE


async def test_a_title_changes_and_nothing_else(rig: Rig) -> None:
    conversation, _ = await answered(rig, "a")
    before = rig.rows("select * from ingestion.conversations")[0]
    request = update(conversation, title="better")

    await rig.ingestion.requests.handle([request])

    after = rig.rows("select * from ingestion.conversations")[0]
    assert outcome(rig, request) == ACCEPTED
    assert after == {**before, "title": "better", "updated_at": after["updated_at"]}
    assert rig.ingestion.relay.types() == []
