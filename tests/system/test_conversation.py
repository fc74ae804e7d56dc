"""A conversation as people use it: stopping, editing, asking again, going on, deleting, forking.

Everything goes through the client that users get; the provider's record says what a model saw.
"""

import asyncio
import functools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from services.ops.archive import archive_at
from tests.rig.house import House
from tests.rig.provider import RecordedRequest, Rule, fast_text
from tests.rig.waiting import until
from turnwire import AcceptedTurn, Answer, Ask, AsyncClient, Message, Options, ProblemError, Turn
from turnwire.testing import (
    assert_current_turn_once,
    assert_one_answer,
    assert_superseded_excluded,
    assert_within_budget,
)

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]

CANCELLED_WITHIN_S = 2.0
CLOSED_WITHIN_S = 1.0
TRIES = 3
"""One end that is late may be the fault of a machine that stood still; so many are the house's."""

RACES = 8
FOR_EVER = ("and ", "so ", "on ")


class Late(AssertionError):
    """Something came, and later than was promised."""


def in_time(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Let a test of promised seconds be late, and begin again somewhere else, but not always."""

    @functools.wraps(test)
    async def tried(*, person: "Person", **others: object) -> None:
        for _ in range(TRIES - 1):
            try:
                return await test(person=person, **others)
            except Late:
                person = await person.elsewhere()
        return await test(person=person, **others)

    return tried


@dataclass
class Person:
    """Somebody with a conversation; their questions bear a marker, so that answers are scripted."""

    house: House
    client: AsyncClient
    key: str
    conversation: UUID
    marker: str

    async def elsewhere(self) -> "Person":
        """The same person in another conversation, with other answers."""
        made = await self.client.create_conversation()
        return replace(self, conversation=made.id, marker=uuid4().hex[:8])

    def script(self, about: str, **rule: object) -> str:
        """Script the answer to a question of ours; returns the question."""
        text = f"{self.marker} {about}"
        self.house.provider.script(Rule(match=text, **rule))  # type: ignore[arg-type]
        return text

    async def post(self, text: str, ask: Ask | None = None) -> AcceptedTurn:
        """Post a message to our conversation."""
        return await self.client.post(self.conversation, text, ask=ask or Ask())

    async def ask(self, text: str) -> tuple[AcceptedTurn, Answer]:
        """Post a message and read its answer."""
        turn = await self.post(text)
        return turn, await self.client.follow(turn.turn_id).result()

    async def shown(self, turn_id: UUID, deltas: int) -> str:
        """Follow a turn until so many deltas came; their text."""
        stream = self.client.follow(turn_id)
        seen = 0
        async for event in stream:
            seen += event.name == "content_delta"
            if seen == deltas:
                break
        return stream.text

    async def messages(self, branch: UUID | None = None) -> list[Message]:
        """The messages of a branch."""
        found = self.client.messages(self.conversation, branch=branch)
        return [message async for message in found]

    async def ended(self, turn_id: UUID, *, within_s: float = 20.0) -> Turn:
        """The turn once it has ended."""
        found: list[Turn] = []

        async def has_ended() -> bool:
            found[:] = [await self.client.turn(turn_id)]
            return found[0].has_ended

        await until(has_ended, within_s=within_s)
        return found[0]

    async def stopped(self, turn_id: UUID) -> Turn:
        """Cancel a turn, and see it end."""
        await self.client.cancel(turn_id)
        turn = await self.ended(turn_id)
        assert (turn.status, turn.reason) == ("cancelled", "user")
        return turn

    async def cancelled(self, turn_id: UUID) -> Turn:
        """Cancel a turn, and see it end as quickly as was promised.

        Raises:
            Late: It ended later.
        """
        began = time.monotonic()
        turn = await self.stopped(turn_id)
        took_s = time.monotonic() - began
        if took_s > CANCELLED_WITHIN_S:
            raise Late(f"the end came after {took_s:.2f} s")
        return turn

    async def is_refused_to_cancel(self, turn_id: UUID) -> bool:
        """Ask for a turn's end; whether it had come already."""
        try:
            await self.client.cancel(turn_id)
        except ProblemError as problem:
            if problem.slug != "turn-already-terminal":
                raise
            return True
        return False

    def calls(self, text: str) -> list[RecordedRequest]:
        """What the provider was asked with this as the last user message."""
        return [r for r in self.house.provider.requests if r.last_user_message == text]

    async def called(self, text: str) -> RecordedRequest:
        """The provider's first call for a question, once it came."""

        async def is_called() -> bool:
            return bool(self.calls(text))

        await until(is_called)
        return self.calls(text)[0]


@pytest_asyncio.fixture(loop_scope="session")
async def person(house: House) -> AsyncIterator[Person]:
    key = await house.make_key(f"people-{uuid4().hex[:6]}")
    async with AsyncClient(house.gateway_url(), key.key) as client:
        made = await client.create_conversation()
        yield Person(house, client, key.key, made.id, uuid4().hex[:8])


def said(request: RecordedRequest) -> list[str]:
    """What a model was shown, without the operator's words."""
    return [m["content"] for m in request.json["messages"] if m["role"] != "system"]


async def closed(request: RecordedRequest) -> float:
    """See the provider's connection closed by who asked; when that was, as seconds since 1970."""

    async def has_ended() -> bool:
        return request.ended_at is not None

    await until(has_ended)
    assert request.closed_by_client
    assert request.ended_at is not None
    return request.ended_at


async def closed_in_time(request: RecordedRequest, since_s: float) -> None:
    """See the provider's connection closed as quickly as was promised.

    Raises:
        Late: It was closed later.
    """
    took_s = await closed(request) - since_s
    if took_s > CLOSED_WITHIN_S:
        raise Late(f"the connection was closed after {took_s:.2f} s")


# Cancelling, stage by stage


@in_time
async def test_a_turn_that_waits_is_cancelled_and_the_one_before_goes_on(person: Person) -> None:
    first_text = person.script("first", deltas=("a", "b", "c"), hang_after=0)
    first = await person.post(first_text)
    await person.called(first_text)
    second = await person.post(f"{person.marker} second")
    third = await person.post(f"{person.marker} third")
    assert (await person.client.turn(second.turn_id)).queue_position == 1

    await person.cancelled(second.turn_id)

    assert (await person.client.turn(third.turn_id)).queue_position == 1
    person.house.provider.release()
    assert (await person.client.follow(first.turn_id).result()).text == "abc"
    assert (await person.client.follow(third.turn_id).result()).is_complete
    assert person.calls(f"{person.marker} second") == []


@in_time
async def test_a_turn_without_a_plan_is_cancelled(house: House, person: Person) -> None:
    process = house.process("context_assembly")
    await process.stop()
    try:
        turn = await person.post(f"{person.marker} never planned")
        ended = await person.cancelled(turn.turn_id)
    finally:
        await process.restart(env=house.environment("context_assembly"))

    assert ended.length == 0
    _, answer = await person.ask(f"{person.marker} afterwards")
    assert answer.text == fast_text()
    assert person.calls(f"{person.marker} never planned") == []


@in_time
async def test_a_turn_before_its_first_word_is_cancelled(person: Person) -> None:
    text = person.script("silence", hang_before_head=True)
    turn = await person.post(text)
    call = await person.called(text)

    asked_at = time.time()
    ended = await person.cancelled(turn.turn_id)

    await closed_in_time(call, asked_at)
    assert ended.length == 0
    assert (await person.client.follow(turn.turn_id).result()).text == ""


@in_time
async def test_a_turn_that_streams_is_cancelled_and_keeps_what_was_shown(person: Person) -> None:
    text = person.script("for ever", deltas=FOR_EVER, never_ends=True, delay_ms=50)
    turn = await person.post(text)
    before = await person.shown(turn.turn_id, 3)
    call = await person.called(text)

    asked_at = time.time()
    await person.cancelled(turn.turn_id)

    await closed_in_time(call, asked_at)
    answer = await person.client.follow(turn.turn_id).result()
    stored = (await person.messages())[1]
    assert answer.text.startswith(before)
    assert call.text_sent.startswith(answer.text)
    assert (stored.content, stored.status, stored.reason) == (answer.text, "cancelled", "user")


async def test_the_next_plan_shows_a_stopped_answer_as_interrupted(person: Person) -> None:
    seven = [f"delta {n} " for n in range(7)]
    text = person.script("twenty", deltas=seven, hang_after=7)
    turn = await person.post(text)
    await person.shown(turn.turn_id, 1)
    call = await person.called(text)

    async def is_all_sent() -> bool:
        stream = person.client.follow(turn.turn_id)
        async for _ in stream:
            if stream.text == "".join(seven):
                return True
        return False

    async with asyncio.timeout(20):
        assert await is_all_sent()
    await person.stopped(turn.turn_id)
    goes_on = f"{person.marker} continue"
    await person.ask(goes_on)

    await closed(call)
    question, answer = (await person.messages())[:2]
    assert (question.content, answer.content) == (text, "".join(seven))
    shown = said(await person.called(goes_on))
    assert shown == [text, "".join(seven) + "\n\n[interrupted]", goes_on]


async def test_a_cancellation_that_races_with_the_end_leaves_one_end(person: Person) -> None:
    for n in range(RACES):
        text = person.script(f"race {n}", deltas=("a", "b"), delay_ms=10)
        turn = await person.post(text)
        await asyncio.sleep(n * 0.015)  # moves the race, from before the call to after the end
        refused = await person.is_refused_to_cancel(turn.turn_id)
        answer = await person.client.follow(turn.turn_id).result()
        row = await person.client.turn(turn.turn_id)
        assert (row.status, row.length) == (answer.status, len(answer.text.encode()))
        assert answer.status in ({"completed"} if refused else {"completed", "cancelled"})
        assert_one_answer(await person.messages(), turn.turn_id)


async def test_a_turn_that_has_ended_is_not_cancelled(person: Person) -> None:
    turn, answer = await person.ask(f"{person.marker} quick")

    with pytest.raises(ProblemError) as caught:
        await person.client.cancel(turn.turn_id)

    assert (caught.value.status, caught.value.slug) == (409, "turn-already-terminal")
    assert (await person.client.turn(turn.turn_id)).status == answer.status == "completed"


# Leaving


async def test_leaving_for_a_moment_stops_nothing(person: Person) -> None:
    text = person.script("go on", deltas=[f"{n} " for n in range(40)], delay_ms=25)
    turn = await person.post(text, Ask(options=Options(cancel_after_s=5)))

    await person.shown(turn.turn_id, 5)
    answer = await person.client.follow(turn.turn_id).result()

    assert answer.text == "".join(f"{n} " for n in range(40))
    assert answer.is_complete


async def test_nobody_listens_and_the_call_is_ended(person: Person) -> None:
    text = person.script("nobody", deltas=FOR_EVER, never_ends=True, delay_ms=50)
    turn = await person.post(text, Ask(options=Options(cancel_after_s=1)))
    shown = await person.shown(turn.turn_id, 5)

    ended = await person.ended(turn.turn_id)

    assert (ended.status, ended.reason) == ("cancelled", "no_subscriber")
    assert ended.usage is not None
    await closed(await person.called(text))
    assert (await person.messages())[1].content.startswith(shown)


# Editing, asking again, going on


async def test_an_edit_leaves_the_old_branch_out_of_every_later_plan(person: Person) -> None:
    mark = person.marker
    for n, text in enumerate(("code A is 11", "tell a joke", "code C is 33")):
        person.script(text, deltas=(f"answer {n}",))
        await person.ask(f"{mark} {text}")
    old = await person.messages()
    joke = old[2]

    turn = await person.client.edit(person.conversation, joke.id, f"{mark} List all codes")
    await person.client.follow(turn.turn_id).result()

    shown = said(await person.called(f"{mark} List all codes"))
    assert shown == [f"{mark} code A is 11", "answer 0", f"{mark} List all codes"]
    now = await person.messages()
    assert [m.content for m in now[:3]] == shown
    assert (now[2].supersedes, now[2].kind) == (joke.id, "edit")
    assert [m.id for m in await person.messages(branch=old[0].branch_id)] == [m.id for m in old]
    plan = await person.client.plan(turn.turn_id)
    assert_current_turn_once(plan, message_id=turn.user_message_id)
    assert_superseded_excluded(plan, [m.id for m in old[2:]])
    assert_within_budget(plan)

    again = await person.client.edit(person.conversation, joke.id, f"{mark} List them")
    await person.client.follow(again.turn_id).result()

    branches = await person.client.branches(person.conversation)
    assert sorted(branch.is_active for branch in branches) == [False, False, True]
    assert len({m.id for m in await person.messages()}) == len(await person.messages()) == 4
    assert said(await person.called(f"{mark} List them"))[:2] == shown[:2]


async def test_another_answer_stands_beside_the_first_one(person: Person) -> None:
    text = person.script("which one", deltas=("first",), times=1)
    turn, first = await person.ask(text)
    person.house.provider.script(Rule(match=text, deltas=("second",)))

    again = await person.client.regenerate(turn.turn_id)
    second = await person.client.follow(again.turn_id).result()

    assert (first.text, second.text) == ("first", "second")
    assert again.user_message_id == turn.user_message_id
    assert [said(call) for call in person.calls(text)] == [[text], [text]]
    assert [m.content for m in await person.messages()] == [text, "second"]
    old = await person.messages(branch=turn.branch_id)
    assert [m.content for m in old] == [text, "first"]


async def test_an_answer_that_was_cut_goes_on_where_it_stopped(person: Person) -> None:
    text = person.script("a story", deltas=("Once upon ",), end_after=1, times=1)
    turn, cut = await person.ask(text)
    assert (cut.status, cut.text) == ("partial", "Once upon ")
    person.house.provider.script(Rule(match=text, deltas=("a time.",)))

    rest = await person.client.continue_turn(turn.turn_id)
    answer = await person.client.follow(rest.turn_id).result()

    assert answer.text == "a time."
    assert said(person.calls(text)[-1]) == [text, "Once upon "]
    assert [m.content for m in await person.messages()] == [text, "Once upon ", "a time."]
    assert_current_turn_once(await person.client.plan(rest.turn_id))


async def test_a_complete_answer_cannot_be_continued(person: Person) -> None:
    turn, _ = await person.ask(f"{person.marker} complete")

    with pytest.raises(ProblemError) as caught:
        await person.client.continue_turn(turn.turn_id)

    assert (caught.value.status, caught.value.slug) == (409, "not-continuable")


async def test_an_answer_cannot_be_edited(person: Person) -> None:
    turn, _ = await person.ask(f"{person.marker} mine")

    with pytest.raises(ProblemError) as caught:
        await person.client.edit(person.conversation, turn.assistant_message_id, "yours")

    assert caught.value.slug == "not-editable"


# Policies


async def test_reject_names_the_turn_that_runs(person: Person) -> None:
    running = await person.post(person.script("busy", hang_before_head=True))

    with pytest.raises(ProblemError) as caught:
        await person.post(f"{person.marker} too soon", Ask(policy="reject"))

    assert caught.value.slug == "turn-in-progress"
    assert caught.value.turn_id == str(running.turn_id)
    await person.stopped(running.turn_id)


async def test_replace_ends_the_running_turn_and_starts(person: Person) -> None:
    running = await person.post(
        person.script("long", deltas=FOR_EVER, never_ends=True, delay_ms=50)
    )
    await person.shown(running.turn_id, 2)

    newer = await person.post(f"{person.marker} rather this", Ask(policy="replace"))
    answer = await person.client.follow(newer.turn_id).result()

    assert answer.is_complete
    ended = await person.client.turn(running.turn_id)
    assert (ended.status, ended.reason) == ("cancelled", "replaced")


async def test_a_branch_starts_at_once_from_the_same_parent(person: Person) -> None:
    _, _ = await person.ask(f"{person.marker} before")
    running = await person.post(person.script("slow", hang_before_head=True))
    await person.called(f"{person.marker} slow")

    beside = await person.post(f"{person.marker} beside", Ask(policy="branch"))
    await person.client.follow(beside.turn_id).result()

    assert beside.branch_id != running.branch_id
    turns = [await person.client.turn(t.turn_id) for t in (running, beside)]
    assert turns[0].parent_turn_id == turns[1].parent_turn_id is not None
    assert f"{person.marker} slow" not in said(await person.called(f"{person.marker} beside"))
    await person.stopped(running.turn_id)


# Deleting


async def test_a_deleted_message_is_gone_from_lists_plans_and_streams(person: Person) -> None:
    first, _ = await person.ask(f"{person.marker} keep")
    second, _ = await person.ask(f"{person.marker} forget")

    await person.client.delete_message(person.conversation, second.user_message_id)
    await person.client.delete_message(person.conversation, second.assistant_message_id)

    ids = {m.id for m in await person.messages()}
    assert ids == {first.user_message_id, first.assistant_message_id}
    with pytest.raises(ProblemError) as caught:
        await person.client.follow(second.turn_id).result()
    assert caught.value.slug == "stream-expired"
    third, _ = await person.ask(f"{person.marker} afterwards")
    gone = [second.user_message_id, second.assistant_message_id]
    assert_superseded_excluded(await person.client.plan(third.turn_id), gone)
    assert f"{person.marker} forget" not in said(await person.called(f"{person.marker} afterwards"))


async def test_a_conversation_deleted_in_the_middle_of_a_turn_comes_back_whole(
    person: Person,
) -> None:
    text = person.script("in the middle", deltas=FOR_EVER, never_ends=True, delay_ms=50)
    turn = await person.post(text)
    await person.shown(turn.turn_id, 3)

    await person.client.delete_conversation(person.conversation)

    for missing in (person.client.turn(turn.turn_id), person.post("anybody there?")):
        with pytest.raises(ProblemError) as caught:
            await missing
        assert caught.value.slug == "not-found"
    await closed(await person.called(text))

    await person.client.restore_conversation(person.conversation)

    ended = await person.ended(turn.turn_id)
    assert (ended.status, ended.reason) == ("cancelled", "conversation_deleted")
    assert_one_answer(await person.messages(), turn.turn_id)


# Evidence


async def test_a_plan_explains_itself(person: Person) -> None:
    await person.ask(f"{person.marker} the harbour")
    turn, _ = await person.ask(f"{person.marker} the ferry")
    client = person.client

    difference = await client.diff(turn.turn_id)
    present = await client.explain(turn.turn_id, text="the harbour")
    absent = await client.explain(turn.turn_id, text="a text that nobody wrote")
    replay = await client.replay(turn.turn_id)

    assert (difference["pattern"], difference["is_healthy"]) == ("two_new", True)
    assert (present["verdict"], present["trust"]) == ("present", "user")
    assert (absent["verdict"], absent["reason"]) == ("absent", "not_stored")
    assert replay["equal"], replay["changed"]


async def command(person: Person, *words: str) -> tuple[int | None, Any]:
    """Run the command line as this person; its exit code and its JSON."""
    known = {k: v for k, v in os.environ.items() if not k.startswith("TURNWIRE_")}
    settings = {"TURNWIRE_URL": person.house.gateway_url(), "TURNWIRE_API_KEY": person.key}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.ops", "--json", *words),
        env={**known, **settings},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        said, complaint = await process.communicate()
    assert said, complaint
    return process.returncode, json.loads(said)


async def test_the_command_line_tells_the_same(person: Person) -> None:
    await person.ask(f"{person.marker} the lighthouse")
    turn, _ = await person.ask(f"{person.marker} the pier")
    id_ = str(turn.turn_id)

    code, difference = await command(person, "turns", "diff", id_)
    assert (code, difference) == (0, await person.client.diff(turn.turn_id))
    code, found = await command(person, "turns", "explain", id_, "the lighthouse")
    assert (code, found) == (0, await person.client.explain(id_, text="the lighthouse"))
    code, replay = await command(person, "turns", "replay", id_)
    assert (code, replay["equal"]) == (0, True)
    code, plan = await command(person, "turns", "plan", id_, "--step", "1")
    assert_current_turn_once(plan, message_id=turn.user_message_id)
    assert code == 0


async def test_an_archived_conversation_goes_on_as_if_nothing_had_happened(person: Person) -> None:
    await person.ask(person.script("one", deltas=("1",)))
    await person.ask(person.script("two", deltas=("2",)))
    before = await person.messages()
    async with archive_at(person.house.stack.service_database_url("ops")) as archive:
        moved = await archive.put_away(person.conversation, below=before[-1].seq)

    assert moved == len(before) - 1
    assert await person.messages() == before
    turn, _ = await person.ask(f"{person.marker} three")
    shown = said(await person.called(f"{person.marker} three"))
    assert shown == [*(m.content for m in before), f"{person.marker} three"]
    assert (await person.client.diff(turn.turn_id))["is_healthy"]
    assert (await person.client.replay(turn.turn_id))["equal"]


async def test_a_second_view_is_told_what_happens(person: Person) -> None:
    names: list[str] = []
    text = person.script("tell them", deltas=("a",), hang_after=0)

    async def watch() -> None:
        async for event in person.client.watch(person.conversation):
            names.append(event.name)
            if event.name == "state":
                await person.post(text)
            elif event.name == "turn_began":
                await person.called(text)
                person.house.provider.release()
            elif event.name == "turn_ended":
                return

    async with asyncio.timeout(40):
        await watch()

    assert names == ["state", "turn_began", "turn_ended"]
