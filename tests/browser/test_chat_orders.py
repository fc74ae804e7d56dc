"""The chat page when its requests, the lists it reads and its streams come in another order."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from playwright.async_api import Browser, Error, Page, Route, expect

from services.frontend_gateway.core.turns import TurnView
from tests.browser.asking import REFUSAL, answered, ask, chatting, refused, streamed, turns
from tests.browser.opening import WITHIN_MS, Chat
from tests.rig.gateway import GatewayRig, started
from tests.rig.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

PAGE = 50
"""Messages that the page reads at once."""

FOCUSED = "document.activeElement.dataset.act ?? document.activeElement.className"


class Held:
    """Requests of a page that are on their way until they are set free."""

    def __init__(self) -> None:
        self.count = 0
        self.free = asyncio.Event()

    async def has(self, number: int) -> None:
        """Wait until so many have been sent."""

        async def are_there() -> bool:
            return self.count >= number

        await until(are_there)


@contextlib.asynccontextmanager
async def holding(
    page: Page, url: str, method: str = "GET", *, is_answered: bool = False
) -> AsyncIterator[Held]:
    """Hold requests: on the way to the server, or where ``is_answered``, on the way back."""
    held = Held()

    async def hold(route: Route) -> None:
        if route.request.method != method:
            await route.fallback()
            return
        with contextlib.suppress(Error):  # the page was left meanwhile
            answer = await route.fetch() if is_answered else None
            held.count += 1
            async with asyncio.timeout(WITHIN_MS / 1_000):
                await held.free.wait()
            await (route.continue_() if answer is None else route.fulfill(response=answer))

    await page.route(url, hold)
    try:
        yield held
    finally:
        held.free.set()
        await page.unroute(url, hold)


async def shows(chat: Chat, rig: GatewayRig, *, newest: int = PAGE) -> None:
    """See on the page the newest messages that are stored, each once and in their order."""
    (rows,) = rig.store.message_rows.values()
    wanted = [str(row.id) for row in rows[-newest:]]
    seen = "nodes => nodes.map((one) => one.dataset.id)"

    async def are_shown() -> bool:
        return bool(await chat.page.locator(".message").evaluate_all(seen) == wanted)

    await until(are_shown)


async def told(rig: GatewayRig, conversation: str, number: int) -> None:
    """Have questions asked elsewhere and answered, one after the other."""
    for n in range(number):
        answer = await rig.post(conversation, f"Elsewhere {n}")
        rig.end(rig.store.turn_rows[UUID(answer.json()["turn_id"])], "Yes.", None)


async def again(chat: Chat, rig: GatewayRig) -> TurnView:
    """Ask for another answer, and have its turn begun."""
    before = len(rig.store.turn_rows)
    await chat.act("Answer again")
    turn = await turns(rig, before + 1)
    await rig.live.append(turn.id, [started(turn)])
    return turn


# Sending


@pytest.mark.parametrize("is_reloaded", [False, True])
async def test_what_is_said_at_once_is_one_conversation_in_its_order(
    rig: GatewayRig, browser: Browser, is_reloaded: bool
) -> None:
    async with chatting(rig, browser) as chat:
        async with holding(chat.page, "**/v1/conversations", "POST") as made:
            for text in ("One", "Two", "Three"):
                await chat.send(text)
            await made.has(1)
            if is_reloaded:
                await chat.page.reload()
                await made.has(2)
            await expect(chat.questions.locator(".text")).to_have_text(["One", "Two", "Three"])
        await turns(rig, 3)
        await shows(chat, rig)
        async with holding(chat.page, "**/messages", "POST") as said:
            for text in ("Four", "Five"):
                await chat.send(text)
            await said.has(1)
            assert len(rig.store.turn_rows) == 3
        await turns(rig, 5)
        await shows(chat, rig)
        asked = [row.content for rows in rig.store.message_rows.values() for row in rows]
        assert [text for text in asked if text] == ["One", "Two", "Three", "Four", "Five"]


async def test_stop_that_was_pressed_before_there_was_a_turn_stops_it(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        async with holding(chat.page, "**/v1/conversations", "POST", is_answered=True) as made:
            await chat.send("No, wait")
            await made.has(1)
            await chat.composer.press("Escape")
        await chat.see_state("◌ stopping")
        (turn,) = rig.store.turn_rows.values()
        await rig.live.append(turn.id, [started(turn)])
        await rig.finish(turn, "", "1-2", status="cancelled", reason="user")
        await chat.see_state("✕ cancelled")
        # What was sent by the mouse is not stopped by the same press.
        await chat.composer.fill("And now")
        send, stop = chat.page.locator("#send"), chat.page.locator("#stop")
        await send.click()
        await expect(stop).to_be_visible()
        await stop.hover()
        await chat.page.mouse.down(click_count=2)
        await chat.page.mouse.up(click_count=2)
        await expect(chat.composer).to_be_focused()
        await chat.see_state("◌ thinking")
        await stop.click()
        await chat.see_state("◌ stopping")


async def test_a_message_on_a_dead_connection_is_sent_on_another(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        await chat.page.clock.install()
        await chat.page.reload()
        async with holding(chat.page, "**/v1/conversations", "POST", is_answered=True) as made:
            await chat.send("Hello?")
            await made.has(1)
            await chat.page.clock.run_for(31_000)
            await expect(chat.notice).to_contain_text("Sending again")
            await chat.page.clock.run_for(2_000)
            await made.has(2)
        await turns(rig, 1)
        await shows(chat, rig)
        await expect(chat.notice).to_have_text("")


async def test_another_answer_is_asked_for_once_by_two_presses(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        await answered(chat, rig, "Tell me", "It is late.")
        async with holding(chat.page, "**/regenerate", "POST") as asked:
            await chat.answers.last.get_by_role("button", name="Answer again").dblclick()
            await asked.has(1)
        await expect(chat.page.get_by_role("group", name="Versions")).to_contain_text("2 / 2")
        assert asked.count == 1


# What is refused


async def test_an_edit_during_its_answer_is_told_and_kept(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        turn = await streamed(chat, rig, "Tell me")
        field = chat.page.get_by_label("Your message, said in other words")
        await chat.composer.press("ArrowUp")
        await field.fill("Tell me more")
        await field.press("Enter")
        await expect(chat.notice).to_contain_text("Not now.")
        await expect(field).to_have_value("Tell me more")
        await expect(field).to_be_focused()
        await rig.finish(turn, "It is late.", "1-2")
        await chat.see_state("● answered")
        await field.press("Enter")
        await turns(rig, 2)
        await expect(chat.questions.locator(".text")).to_have_text("Tell me more")
        await expect(chat.notice).to_have_text("")


async def test_a_refused_message_is_not_lost_by_leaving_it(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        await refused(chat, rig, "One too many")
        await chat.page.get_by_role("button", name="New conversation").click()
        await expect(chat.composer).to_have_value("")
        await chat.list.get_by_role("link").click()
        await expect(chat.composer).to_have_value("One too many")
        await chat.composer.press("Enter")
        await expect(chat.questions.last).to_contain_text("not sent")
        await chat.page.reload()
        await expect(chat.composer).to_have_value("One too many")
        await expect(chat.questions).to_have_count(1)
        await chat.act("Edit", on=chat.questions.last)
        field = chat.page.get_by_label("Your message, said in other words")
        await field.fill("Hello there")
        await chat.page.get_by_role("button", name="New conversation").click()
        await chat.list.get_by_role("link").click()
        await expect(chat.composer).to_have_value("One too many\n\nHello there")


async def test_a_refused_text_joins_what_is_written_meanwhile(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        rig.ingestion.problem = REFUSAL
        async with holding(chat.page, "**/v1/conversations", "POST") as asked:
            await chat.send("Hello?")
            await asked.has(1)
            await chat.page.get_by_role("button", name="New conversation").click()
            await expect(chat.questions).to_have_count(0)
            await chat.composer.press_sequentially("Something else")
        await expect(chat.composer).to_have_value("Something else\n\nHello?")


async def test_a_refused_beginning_belongs_to_the_conversation_that_began_after_it(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        rig.ingestion.problem = REFUSAL
        await chat.send("One too many")
        await expect(chat.questions).to_contain_text("not sent")
        rig.ingestion.problem = None
        await chat.send("Hello?")
        await turns(rig, 1)
        await expect(chat.answers).to_have_count(1)
        await chat.page.reload()
        await expect(chat.composer).to_have_value("One too many")


# What is shown


async def test_an_answer_on_another_branch_is_neither_followed_nor_said_twice(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        spoken = chat.page.locator("#spoken p")
        versions = chat.page.get_by_role("group", name="Versions")
        before = versions.get_by_role("button", name="Previous version")
        after = versions.get_by_role("button", name="Next version")

        async def follows(number: int) -> None:
            async def is_so() -> bool:
                return rig.gateway.hub.stream_count == number

            await until(is_so)

        await answered(chat, rig, "Tell me", "It was so.")
        turn = await again(chat, rig)
        await rig.write(turn, ["Once"])
        await chat.see("Once")
        await before.click()
        await chat.see("It was so.")
        await follows(0)
        await after.click()
        await chat.see("Once")
        await follows(1)
        await rig.write(turn, [" more."], n=3)
        await rig.finish(turn, "Once more.", "1-3")
        await chat.see_end_of(turn.assistant_message_id)
        said = ["It was so.", "The answer is complete.", "Once more.", "The answer is complete."]
        await expect(spoken).to_have_text(said)
        await before.click()
        await chat.see("It was so.")
        await after.click()
        await chat.see("Once more.")
        await expect(after).to_be_disabled()
        await expect(spoken).to_have_text(said)


async def test_earlier_messages_come_once_and_nothing_is_missing_between(
    rig: GatewayRig, browser: Browser
) -> None:
    conversation = await rig.conversation()
    await told(rig, conversation, 30)
    async with chatting(rig, browser) as chat:
        earlier = chat.page.get_by_role("button", name="Show earlier messages")
        await chat.page.goto(f"{rig.url}/ui/#{conversation}")
        await shows(chat, rig)
        async with holding(chat.page, "**/messages?*after=*") as read:
            await earlier.dblclick()
            await read.has(1)
        await expect(earlier).to_have_count(0)
        await shows(chat, rig, newest=60)
        assert read.count == 1
        async with holding(chat.page, "**/messages?*") as read:
            await told(rig, conversation, 1)
            await read.has(1)
            await told(rig, conversation, 29)
        await shows(chat, rig)
        await earlier.click()
        await shows(chat, rig, newest=2 * PAGE)


# The keyboard, and the list


async def test_the_focus_stays_where_somebody_is(rig: GatewayRig, browser: Browser) -> None:
    async with chatting(rig, browser) as chat:
        page = chat.page
        turn = await ask(chat, rig, "Tell me")
        await chat.answers.get_by_role("link", name="plan").focus()
        await rig.finish(turn, "It is late.", "1-2")
        await chat.see_state("● answered")
        assert await page.evaluate(FOCUSED) == "plan"
        turn = await ask(chat, rig, "Tell me more")
        await chat.answers.last.get_by_role("button", name="Stop").press("Enter")
        await chat.see_state("◌ stopping")
        assert await page.evaluate(FOCUSED) == "stop"
        await rig.finish(turn, "No", "1-2", status="cancelled", reason="user")
        await chat.see_state("✕ cancelled")
        assert await page.evaluate(FOCUSED) == "message assistant"
        await chat.answers.last.get_by_role("button", name="Answer again").press("Enter")
        await turns(rig, 3)
        await expect(page.locator("#scroll")).to_be_focused()


async def test_the_list_is_not_taken_from_under_somebody_who_changes_it(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        page = chat.page
        await answered(chat, rig, "Harbours", "Here.")
        title = page.get_by_label("Title", exact=True)
        new = page.get_by_role("button", name="New conversation")
        await new.click()
        async with holding(page, "**/v1/conversations?*") as read:
            await chat.send("Ferries")
            await read.has(1)
            await chat.list.hover()
            await chat.list.get_by_role("button", name="Rename").click()
            await title.fill("Old harbours")
            async with page.expect_response("**/v1/conversations?*"):
                read.free.set()
            await page.evaluate("new Promise(requestAnimationFrame)")
        await expect(title).to_have_value("Old harbours")
        await title.press("Enter")
        old = chat.list.filter(has_text="Old harbours")
        await expect(chat.list).to_have_count(2)
        await expect(old).to_have_count(1)
        async with holding(page, "**/v1/conversations?*", is_answered=True) as read:
            await new.click()
            await chat.send("Tides")
            await read.has(1)
            await old.hover()
            await old.get_by_role("button", name="Delete").click()
            await expect(old).to_contain_text("Deleted")
            undo = chat.list.get_by_role("button", name="Undo")
            await expect(undo).to_be_focused()
        await expect(chat.list.get_by_role("link")).to_have_count(2)
        await expect(chat.list.first).to_contain_text("Deleted: Old harbours")
        await expect(chat.list).to_have_count(3)
        await expect(undo).to_be_focused()
