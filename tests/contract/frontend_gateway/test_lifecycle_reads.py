"""Branches, deletion, evidence, instructions and captures: one suite for memory and Postgres."""

import asyncio
from uuid import UUID, uuid4

import pytest

from services.frontend_gateway.core.cursors import Page
from services.frontend_gateway.core.problems import Problem
from services.frontend_gateway.core.proofs import Replayed, replayed, stored_texts
from services.frontend_gateway.ports import Reader, Store
from tests.contract.frontend_gateway.worlds import Said, World
from tests.rig.stored_plans import plan

TENANT, PRINCIPAL = uuid4(), uuid4()
HELD_S = 0.2
"""Long enough for somebody who does not wait to have come and gone."""

ALL = Page(100, None, None, descending=False)


def reader() -> Reader:
    return Reader(PRINCIPAL, uuid4(), uuid4(), uuid4())


async def test_a_turn_names_its_branch_and_its_question(world: World) -> None:
    conversation, turn = await world.conversation(TENANT, PRINCIPAL, [Said()])
    found = await world.store.turn(TENANT, turn)
    assert found is not None
    assert (found.kind, found.stands_on) == ("message", conversation)
    assert found.parent_turn_id is None
    assert not found.is_answer_deleted
    listed = await world.store.messages(TENANT, PRINCIPAL, conversation, ALL)
    assert found.user_message_id == listed[0].id
    assert [(row.kind, row.supersedes) for row in listed] == [("message", None)] * 2


async def test_a_fork_shows_its_parent_below_the_fork(world: World) -> None:
    conversation, *_ = await world.conversation(TENANT, PRINCIPAL, [Said(), Said()])
    branch = await world.fork(TENANT, conversation, 3)
    store = world.store
    active = await store.messages(TENANT, PRINCIPAL, conversation, ALL)
    main = await store.messages(TENANT, PRINCIPAL, conversation, ALL, conversation)
    assert [row.seq for row in active] == [1, 2]
    assert [row.seq for row in main] == [1, 2, 3, 4]
    view = await store.conversation(TENANT, PRINCIPAL, conversation)
    assert view is not None
    assert view.continues_on == branch
    branches = await store.branches(TENANT, PRINCIPAL, conversation)
    assert [(row.id, row.kind, row.fork_seq, row.is_active) for row in branches] == [
        (conversation, "main", None, False),
        (branch, "sibling", 3, True),
    ]
    assert list(await store.branches(TENANT, uuid4(), conversation)) == []
    with pytest.raises(Problem) as caught:
        await store.messages(TENANT, PRINCIPAL, conversation, ALL, uuid4())
    assert caught.value.slug == "not-found"


async def test_a_deleted_answer_has_no_text_anywhere(world: World) -> None:
    conversation, turn = await world.conversation(TENANT, PRINCIPAL, [Said()])
    assert await world.store.answer(TENANT, turn) == "Hi."
    await world.delete_answer(TENANT, turn)
    store = world.store
    assert await store.answer(TENANT, turn) is None
    found = await store.turn(TENANT, turn)
    assert found is not None
    assert found.is_answer_deleted
    gone = found.assistant_message_id
    listed = await store.messages(TENANT, PRINCIPAL, conversation, ALL)
    assert [row.role for row in listed] == ["user"]
    assert dict(await store.message_texts(TENANT, [gone])) == {}
    assert list(await store.find_text(TENANT, PRINCIPAL, conversation, "Hi.")) == []
    facts = await store.message_facts(TENANT, [gone])
    assert facts[gone].is_deleted


async def test_a_deleted_conversation_is_gone_for_readers(world: World) -> None:
    conversation, turn = await world.conversation(TENANT, PRINCIPAL, [Said(status="generating")])
    pair = (TENANT, turn)
    assert len(await world.store.facts([pair])) == 1
    await world.delete_conversation(TENANT, conversation)
    store = world.store
    assert await store.conversation(TENANT, PRINCIPAL, conversation) is None
    assert conversation not in {row.id for row in await store.conversations(TENANT, PRINCIPAL, ALL)}
    assert list(await store.messages(TENANT, PRINCIPAL, conversation, ALL)) == []
    assert list(await store.branches(TENANT, PRINCIPAL, conversation)) == []
    assert await store.turn(TENANT, turn) is None
    assert list(await store.facts([pair])) == []
    activity = await store.activity([(TENANT, conversation)])
    assert activity[conversation].is_deleted


async def test_titles_are_searched_in_any_case_and_without_patterns(world: World) -> None:
    tenant = uuid4()
    conversation, *_ = await world.conversation(tenant, PRINCIPAL, [])
    for query, hits in (("t", 1), ("T", 1), ("%", 0), ("_", 0), ("\\", 0), ("x", 0)):
        found = await world.store.conversations(tenant, PRINCIPAL, ALL, query)
        assert [row.id for row in found] == [conversation] * hits, query


@pytest.mark.parametrize(
    ("title", "query"),
    [
        ("Über das Meer", "ÜBER"),
        ("ПРИВЕТ из порта", "привет"),
        ("ΟΔΟΣ", "οδος"),
        ("οδος", "ΟΔΟΣ"),
        ("Große Straße", "STRASSE"),
        ("GROSSE STRASSE", "straße"),
        ("caf\u00e9", "CAFE\u0301"),
        ("cafe\u0301", "CAF\u00c9"),
        ("\u30ab\u3099\u30b9", "\u30ac\u30b9"),  # a letter and its mark, and both in one
        ("港口的灯光", "口的"),
        ("100% of a_b\\c", "% OF A_B\\C"),
        ("Ferries 🚢 at night", "🚢 AT"),
    ],
)
async def test_titles_are_found_in_any_script_case_and_spelling_of_their_letters(
    world: World, title: str, query: str
) -> None:
    tenant = uuid4()
    conversation, *_ = await world.conversation(tenant, PRINCIPAL, [])
    other, *_ = await world.conversation(tenant, PRINCIPAL, [])
    await world.rename(conversation, title)
    await world.rename(other, "Something else, ohne Treffer, совсем другое")
    found = await world.store.conversations(tenant, PRINCIPAL, ALL, query)
    assert [row.id for row in found] == [conversation]


async def test_the_activity_of_a_conversation_is_its_turns_newest_first(world: World) -> None:
    conversation, first, second = await world.conversation(
        TENANT, PRINCIPAL, [Said(), Said(status="generating")]
    )
    empty, *_ = await world.conversation(TENANT, PRINCIPAL, [])
    unknown = uuid4()
    found = await world.store.activity([(TENANT, id_) for id_ in (conversation, empty, unknown)])
    assert [(turn.turn_id, turn.has_ended) for turn in found[conversation].turns] == [
        (second, False),
        (first, True),
    ]
    assert {turn.branch_id for turn in found[conversation].turns} == {conversation}
    assert (list(found[empty].turns), found[empty].is_deleted) == ([], False)
    assert unknown not in found
    assert dict(await world.store.activity([(uuid4(), conversation)])) == {}


async def test_messages_are_found_by_text_and_by_id(world: World) -> None:
    conversation, turn = await world.conversation(
        TENANT, PRINCIPAL, [Said(question="Where is 100%_of it?", answer="Here.")]
    )
    store = world.store
    places = await store.find_text(TENANT, PRINCIPAL, conversation, "100%_of")
    assert [(place.seq, place.branch_id) for place in places] == [(1, conversation)]
    assert list(await store.find_text(TENANT, PRINCIPAL, conversation, "100_of")) == []
    assert list(await store.find_text(TENANT, uuid4(), conversation, "Here")) == []
    asked = [places[0].message_id, uuid4()]
    facts = await store.message_facts(TENANT, asked)
    assert set(facts) == {places[0].message_id}
    one = facts[places[0].message_id]
    assert (one.conversation_id, one.turn_id, one.seq, one.role) == (conversation, turn, 1, "user")
    assert (one.is_deleted, one.superseded_by) == (False, None)
    assert dict(await store.message_texts(TENANT, asked)) == {asked[0]: "Where is 100%_of it?"}
    assert dict(await store.message_facts(uuid4(), asked)) == {}
    assert dict(await store.message_texts(uuid4(), asked)) == {}


async def instruct(store: Store, tenant: UUID, *wanted: tuple[UUID, str, str]) -> None:
    """Set texts by (scope, kind, text)."""
    async with store.changing_instructions(tenant) as change:
        await change.set([(uuid4(), *one) for one in wanted], actor="test")


async def test_instructions_count_their_versions_and_keep_old_ones(world: World) -> None:
    tenant, conversation = uuid4(), uuid4()
    store = world.store
    brief, long = ((tenant, "workspace", text) for text in ("Be brief.", "Be long."))
    await instruct(store, tenant, brief, (tenant, "system_policy", "Be kind."))
    await instruct(store, tenant, long)
    await instruct(store, tenant, long, (conversation, "workspace", "Rhyme."))
    names = [
        (tenant, "workspace", None),
        (tenant, "workspace", 1),
        (tenant, "workspace", 3),
        (conversation, "workspace", None),
        (conversation, "system_policy", None),
    ]
    found = await store.instructions(tenant, names)
    assert [(row.scope_id, row.version, row.text) for row in found] == [
        (tenant, 2, "Be long."),
        (tenant, 1, "Be brief."),
        (conversation, 1, "Rhyme."),
    ]
    assert all(row.set_at is not None for row in found)


async def test_the_longest_instructions_of_a_tenants_conversations_are_found(world: World) -> None:
    tenant, other = uuid4(), uuid4()
    texts = {"short": "x", "long": "x" * 9, "tenants own": "x" * 99, "elsewhere": "x" * 999}
    owners = {name: other if name == "elsewhere" else tenant for name in texts}
    scopes = {
        name: (await world.conversation(owner, PRINCIPAL, []))[0] for name, owner in owners.items()
    } | {"tenants own": tenant}
    for name, text in texts.items():
        await instruct(world.store, owners[name], (scopes[name], "workspace", text))
    await instruct(world.store, tenant, (scopes["short"], "workspace", "y"))

    async with world.store.changing_instructions(tenant) as change:
        found = await change.longest("workspace")
        of_another_kind = await change.longest("system_policy")

    assert [(row.scope_id, row.text) for row in found] == [
        (scopes["long"], "x" * 9),
        (scopes["short"], "y"),
    ]
    assert of_another_kind == []


async def test_whoever_sets_instructions_second_sees_what_the_first_has_set(world: World) -> None:
    tenant, elsewhere = uuid4(), uuid4()

    async def second_looks() -> list[str]:
        async with world.store.changing_instructions(tenant) as change:
            found = await change.instructions([(tenant, "workspace", None)])
            return [row.text for row in found]

    async with world.store.changing_instructions(tenant) as change:
        await instruct(world.store, elsewhere, (elsewhere, "workspace", "Nobody waits for us."))
        second = asyncio.create_task(second_looks())
        too_early, _ = await asyncio.wait({second}, timeout=HELD_S)
        await change.set([(uuid4(), tenant, "workspace", "First.")], actor="test")

    assert not too_early
    assert await asyncio.wait_for(second, timeout=10) == ["First."]


async def test_reading_a_capture_leaves_a_row_whether_there_is_one_or_not(world: World) -> None:
    _, turn = await world.conversation(TENANT, PRINCIPAL, [Said()])
    await world.plan(TENANT, turn, {})
    store = world.store
    assert await store.read_capture(TENANT, turn, None, reader()) is None
    await world.capture(TENANT, turn, b'{"model":"m"}')
    found = await store.read_capture(TENANT, turn, 1, reader())
    assert found is not None
    assert (found.step_no, found.cause, found.payload) == (1, "failed", b'{"model":"m"}')
    assert await store.read_capture(TENANT, turn, 2, reader()) is None
    assert sorted(await world.reads_of(turn), key=lambda read: read[1]) == [
        (PRINCIPAL, False),
        (PRINCIPAL, False),
        (PRINCIPAL, True),
    ]


async def test_a_tenant_that_keeps_nothing_loses_what_was_kept(world: World) -> None:
    tenant = uuid4()
    conversation, turn = await world.conversation(tenant, PRINCIPAL, [Said()])
    await world.plan(tenant, turn, {})
    await world.capture(tenant, turn, b"{}")
    store = world.store
    await store.flag_conversation(tenant, conversation, is_flagged=True, actor="test")
    await store.flag_conversation(tenant, conversation, is_flagged=False, actor="test")
    await store.set_capture_posture(tenant, "failures", 5, actor="test")
    assert await store.read_capture(tenant, turn, None, reader()) is not None
    await store.set_capture_posture(tenant, "none", 0, actor="test")
    assert await store.read_capture(tenant, turn, None, reader()) is None


async def test_a_payload_is_proven_by_the_rows_until_one_of_them_changes(world: World) -> None:
    conversation, turn, _ = await world.conversation(
        TENANT, PRINCIPAL, [Said(), Said(question="B")]
    )
    store = world.store
    listed = await store.messages(TENANT, PRINCIPAL, conversation, ALL)
    shown = [(str(row.id), row.role, row.content, row.seq) for row in listed[:3]]
    await world.plan(TENANT, turn, plan(shown, turn_id=turn))
    (stored,) = await store.plans(TENANT, turn)
    messages, _ = stored_texts(stored.plan)

    async def replay() -> Replayed:
        texts = await store.message_texts(TENANT, messages)
        facts = await store.message_facts(TENANT, messages)
        named = {str(id_): text for id_, text in texts.items()}
        return replayed(stored.plan, named, facts)

    assert (await replay()).is_equal
    await world.rewrite(conversation, listed[1].id, "Ho.")
    found = await replay()
    assert not found.is_equal
    assert found.changed == ((str(listed[1].id), "text_changed"),)
    await world.rewrite(conversation, listed[1].id, "Hi.")
    assert (await replay()).is_equal
    await world.delete_answer(TENANT, turn)
    found = await replay()
    assert (found.fingerprint_now, found.changed) == (None, ((str(listed[1].id), "deleted"),))
