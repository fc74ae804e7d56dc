"""The chat page against the real house: what people do, and what happens to them meanwhile."""

import asyncio
import re

import pytest
from playwright.async_api import Error, Page, Request, Route, expect

from tests.browser.opening import WITHIN_MS, Chat, Visitor
from tests.rig.house import House
from tests.rig.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

WORDS = tuple(f"word{number} " for number in range(60))
WHOLE = "".join(WORDS)
FOR_EVER = ("and ", "so ", "on ")
RACES = 5
OFFLINE_S = 30
"""By the page's clock, on which alone its pauses depend."""

STEP_S = 5


async def as_stored(visitor: Visitor, chat: Chat, *, answers: int = 1) -> None:
    """See on the page what the database has, byte by byte, once and with nothing waiting."""
    await chat.page.bring_to_front()  # a tab behind another takes seconds for a click
    await chat.is_quiet()
    await expect(chat.answers).to_have_count(answers)
    await expect(chat.page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    shown = [await chat.copied(chat.answers.nth(n)) for n in range(answers)]
    assert shown == (await visitor.stored())[-answers:]


# What is said


async def test_an_answer_streams_and_a_reload_in_its_middle_loses_nothing(visitor: Visitor) -> None:
    chat = visitor.chat
    await chat.send(visitor.script("a long one", deltas=WORDS, delay_ms=30))
    await chat.see_state("◌ answering")
    await expect(chat.prose).to_contain_text("word8")
    await visitor.page.reload()
    await expect(chat.prose).to_contain_text("word8")
    await chat.see(WHOLE)
    await chat.see_state("● answered")
    await as_stored(visitor, chat)
    await expect(chat.list.get_by_role("link")).to_have_count(1)
    await visitor.ended(1)


async def test_a_second_tab_shows_the_same_turn_without_a_second_one(visitor: Visitor) -> None:
    chat = visitor.chat
    await chat.send(visitor.script("first", deltas=("One.",)))
    await chat.see("One.")
    async with visitor.tab() as other:
        await other.see("One.")
        await chat.send(visitor.script("second", deltas=WORDS, delay_ms=30))
        await expect(other.prose.last).to_contain_text("word8", timeout=WITHIN_MS)
        for page in (chat, other):
            await page.see(WHOLE)
            await expect(page.questions).to_have_count(2)
            await as_stored(visitor, page, answers=2)
        await other.send(visitor.script("third", deltas=("Three.",)))
        await other.see("Three.")
        await chat.see("Three.")
    await visitor.ended(3)


async def test_thirty_seconds_offline_lose_and_repeat_nothing(visitor: Visitor) -> None:
    chat, page = visitor.chat, visitor.page
    await page.clock.install()
    await page.reload()
    await chat.send(visitor.script("far away", deltas=WORDS, hang_after=20))
    await expect(chat.prose).to_contain_text("word19")
    await visitor.context.set_offline(True)
    gateway = visitor.house.process("frontend_gateway")
    await gateway.kill()  # the browser keeps what is connected already
    await gateway.restart()
    await expect(chat.notice).to_contain_text("Reconnecting", timeout=WITHIN_MS)
    await page.get_by_label("Search titles").fill("no such words")
    visitor.house.provider.release()
    await visitor.ended(1)
    for _ in range(OFFLINE_S // STEP_S):
        await page.clock.run_for(STEP_S * 1_000)
    await expect(chat.notice).to_contain_text("cannot be reached")
    assert "word59" not in (await chat.prose.text_content() or "")
    await visitor.context.set_offline(False)
    await chat.see(WHOLE)
    await chat.see_state("● answered")
    await expect(page.locator("#none")).to_have_text("No title has these words.")
    await as_stored(visitor, chat)


async def test_a_gateway_that_is_killed_in_mid_answer_costs_a_line_and_nothing_else(
    visitor: Visitor,
) -> None:
    chat = visitor.chat
    await chat.send(visitor.script("killed", deltas=WORDS, hang_after=20, delay_ms=20))
    await expect(chat.prose).to_contain_text("word19")
    gateway = visitor.house.process("frontend_gateway")
    await gateway.kill()
    await expect(chat.notice).to_contain_text("Reconnecting")
    await gateway.restart()
    visitor.house.provider.release()
    await chat.see(WHOLE)
    await as_stored(visitor, chat)


async def test_a_turn_that_waits_says_how_many_are_before_it(visitor: Visitor) -> None:
    chat = visitor.chat
    slow = visitor.script("slow", deltas=FOR_EVER, never_ends=True, delay_ms=50)
    await chat.send(slow)
    await chat.see_state("◌ answering")
    await chat.send(visitor.script("patient", deltas=("At last.",)))
    await chat.see_state("○ queued, 1 before it")
    await visitor.page.reload()
    await chat.see_state("○ queued, 1 before it")
    await chat.composer.press("Escape")
    await chat.see("At last.")
    await expect(chat.states.first).to_have_text("✕ cancelled")
    await expect(chat.answers.first).to_contain_text("You stopped this answer.")
    await as_stored(visitor, chat, answers=2)


async def test_a_provider_that_refuses_is_told_with_what_to_do(visitor: Visitor) -> None:
    chat = visitor.chat
    text = visitor.script("refused", status=401, times=1)
    visitor.script("refused", deltas=("Now it works.",))
    await chat.send(text)
    await chat.see_state("✕ failed")
    await expect(chat.answers).to_contain_text("The provider refused the request.")
    await chat.act("Answer again")
    await chat.see("Now it works.")
    await as_stored(visitor, chat)


# What is done to it


async def test_stopping_keeps_what_was_shown(visitor: Visitor) -> None:
    chat = visitor.chat
    await chat.send(visitor.script("endless", deltas=FOR_EVER, never_ends=True, delay_ms=30))
    await expect(chat.prose).to_contain_text("and so on")
    await visitor.page.locator("#stop").click()
    await chat.see_state("✕ cancelled")
    await as_stored(visitor, chat)


async def test_stopping_races_with_the_last_words_and_leaves_one_end(visitor: Visitor) -> None:
    chat = visitor.chat
    for number in range(RACES):
        await chat.send(visitor.script(f"race {number};", deltas=WORDS[:8], delay_ms=20))
        await expect(chat.answers).to_have_count(number + 1)
        await expect(chat.prose.last).to_contain_text("word6", timeout=WITHIN_MS)
        await chat.composer.press("Escape")
        await expect(chat.states.last).to_have_text(re.compile("answered|cancelled"))
    await visitor.ended(RACES)
    await as_stored(visitor, chat, answers=RACES)
    ends = await visitor.house.rows(
        "select status from ingestion.turns where tenant_id = %s order by seq",
        visitor.key.tenant_id,
    )
    words = {"completed": "● answered", "cancelled": "✕ cancelled"}
    assert await chat.states.all_text_contents() == [words[row["status"]] for row in ends]


async def test_an_edit_makes_a_version_and_both_can_be_read(visitor: Visitor) -> None:
    chat = visitor.chat
    for text, answer in (("the first", "One."), ("a joke", "Two."), ("the third", "Three.")):
        await chat.send(visitor.script(text, deltas=(answer,)))
        await chat.see(answer)
    fresh = visitor.script("a poem", deltas=("A poem.",))
    joke = chat.questions.nth(1)
    await chat.act("Edit", on=joke)
    field = visitor.page.get_by_label("Your message, said in other words")
    await field.fill(fresh)
    await field.press("Enter")
    await chat.see("A poem.")
    await expect(chat.prose).to_have_text(["One.", "A poem."])
    versions = visitor.page.get_by_role("group", name="Versions")
    await expect(versions).to_have_text(re.compile(r"2 / 2"))
    await versions.get_by_role("button", name="Previous version").click()
    await expect(chat.prose).to_have_text(["One.", "Two.", "Three."])
    await expect(versions).to_have_text(re.compile(r"1 / 2"))
    # What is said now follows the version that is shown.
    await chat.send(visitor.script("the fourth", deltas=("Four.",)))
    await chat.see("Four.")
    await expect(chat.prose).to_have_text(["One.", "Two.", "Three.", "Four."])
    await visitor.page.reload()
    await expect(chat.prose).to_have_text(["One.", "Two.", "Three.", "Four."])
    await versions.get_by_role("button", name="Next version").click()
    await expect(chat.prose).to_have_text(["One.", "A poem."])


async def test_another_answer_stands_beside_the_first(visitor: Visitor) -> None:
    chat = visitor.chat
    text = visitor.script("which one", deltas=("first",), times=1)
    visitor.script("which one", deltas=("second",), times=1)
    visitor.script("which one", deltas=("third",))
    await chat.send(text)
    await chat.see("first")
    for answer in ("second", "third"):
        await chat.act("Answer again")
        await chat.see(answer)
        await chat.see_state("● answered")
    versions = visitor.page.get_by_role("group", name="Versions")
    await expect(versions).to_have_text(re.compile(r"3 / 3"))
    await versions.get_by_role("button", name="Previous version").click()
    await chat.see("second")
    await expect(versions).to_have_text(re.compile(r"2 / 3"))
    await versions.get_by_role("button", name="Previous version").click()
    await chat.see("first")
    await expect(chat.questions).to_have_count(1)
    assert len(visitor.calls(text)) == 3


async def test_an_answer_that_was_cut_goes_on_where_it_stopped(visitor: Visitor) -> None:
    chat = visitor.chat
    text = visitor.script("a story", deltas=("Once upon ",), end_after=1, times=1)
    visitor.script("a story", deltas=("a time.",))
    await chat.send(text)
    await chat.see_state("◐ stopped early")
    await expect(chat.answers).to_contain_text("Stopped here: the provider cut the stream.")
    await chat.act("Continue")
    await chat.see("a time.")
    await expect(chat.prose).to_have_text(["Once upon", "a time."])
    await expect(visitor.page.get_by_role("button", name="Continue")).to_have_count(0)
    assert await visitor.stored() == ["Once upon ", "a time."]


# The list


async def test_a_conversation_is_renamed_found_deleted_and_brought_back(visitor: Visitor) -> None:
    chat = visitor.chat
    await chat.send(visitor.script("about harbours", deltas=("Harbours.",)))
    await chat.see("Harbours.")
    entry = chat.list.first
    await entry.hover()
    await entry.get_by_role("button", name="Rename").click()
    await visitor.page.get_by_label("Title", exact=True).fill("All <b>harbours</b>")
    await visitor.page.get_by_label("Title", exact=True).press("Enter")
    await expect(entry.locator(".name")).to_have_text("All <b>harbours</b>")
    search = visitor.page.get_by_label("Search titles")
    await search.fill("no such words")
    await expect(visitor.page.locator("#none")).to_have_text("No title has these words.")
    await search.fill("<b>harb")
    await expect(chat.list).to_have_count(1)
    await search.fill("")
    await entry.hover()
    await entry.get_by_role("button", name="Delete").click()
    await expect(chat.list.first).to_contain_text("possible for 10 min")
    await expect(chat.questions).to_have_count(0)
    await visitor.page.reload()
    await chat.list.first.get_by_role("button", name="Undo").click()
    await chat.see("Harbours.")
    await expect(entry.locator(".name")).to_have_text("All <b>harbours</b>")


async def test_a_tab_learns_that_its_conversation_was_deleted(visitor: Visitor) -> None:
    chat = visitor.chat
    await chat.send(visitor.script("soon gone", deltas=("Here.",)))
    await chat.see("Here.")
    async with visitor.tab() as other:
        await other.see("Here.")
        await chat.list.first.hover()
        await chat.list.first.get_by_role("button", name="Delete").click()
        await expect(other.page.get_by_role("heading", name="was deleted")).to_be_visible(
            timeout=WITHIN_MS
        )
        await other.page.get_by_role("button", name="Bring it back").click()
        await other.see("Here.")


# Sending


async def lose_answers(page: Page) -> list[str]:
    """Let messages reach the server and lose what it answers; the keys that they came with."""
    keys: list[str] = []

    async def lose(route: Route, request: Request) -> None:
        if request.method != "POST":
            await route.continue_()
            return
        keys.append(request.headers["idempotency-key"])
        try:
            await route.fetch()
            await route.abort()
        except Error:  # the page was left meanwhile
            return

    await page.route("**/v1/conversations**", lose)
    return keys


async def test_a_message_whose_answer_got_lost_is_stored_once(visitor: Visitor) -> None:
    chat = visitor.chat
    keys = await lose_answers(visitor.page)
    await chat.send(visitor.script("only once", deltas=("Once.",)))
    await expect(chat.notice).to_contain_text("Sending again")

    async def is_repeated() -> bool:
        return len(keys) >= 2

    await until(is_repeated)
    assert len(set(keys)) == 1
    await visitor.page.unroute_all(behavior="ignoreErrors")
    await chat.see("Once.")
    await as_stored(visitor, chat)
    await visitor.ended(1)
    assert len(await visitor.stored("user")) == 1


async def test_a_reload_keeps_the_key_of_a_message_that_was_not_confirmed(visitor: Visitor) -> None:
    chat = visitor.chat
    keys = await lose_answers(visitor.page)
    await chat.send(visitor.script("over a reload", deltas=("Once.",)))
    await expect(chat.notice).to_contain_text("Sending again")
    await visitor.page.unroute_all(behavior="ignoreErrors")
    seen: list[str] = []
    visitor.page.on(
        "request",
        lambda request: (
            seen.append(request.headers.get("idempotency-key", ""))
            if request.method == "POST"
            else None
        ),
    )
    await visitor.page.reload()
    await chat.see("Once.")
    await expect(chat.questions).to_have_count(1)
    await visitor.ended(1)
    assert seen[0] == keys[0]
    assert len(await visitor.stored("user")) == 1
    left = await visitor.page.evaluate("localStorage.getItem('turnwire.unsent')")
    assert left in (None, "[]")


async def test_a_draft_survives_a_reload_and_goes_with_its_conversation(visitor: Visitor) -> None:
    chat = visitor.chat
    await chat.send(visitor.script("a talk", deltas=("Yes.",)))
    await chat.see("Yes.")
    await chat.composer.fill("half a thou")
    await visitor.page.reload()
    await expect(chat.composer).to_have_value("half a thou")
    await visitor.page.get_by_role("button", name="New conversation").click()
    await expect(chat.composer).to_have_value("")
    await chat.list.get_by_role("link").click()
    await expect(chat.composer).to_have_value("half a thou")
    await visitor.page.get_by_role("button", name="Sign out").click()
    await visitor.page.wait_for_url("**/ui/login")
    kept = await visitor.page.evaluate("Object.keys(localStorage).filter(k => /draft/.test(k))")
    assert kept == []


async def test_a_key_that_is_revoked_ends_the_page_and_keeps_the_draft(
    house: House, visitor: Visitor
) -> None:
    chat = visitor.chat
    await chat.send(visitor.script("for a while", deltas=FOR_EVER, never_ends=True, delay_ms=50))
    await chat.see_state("◌ answering")
    await chat.composer.fill("not sent yet")
    await house.operate(
        "select frontend_gateway.op_revoke_key(%s, %s)", visitor.key.key_id, "tests"
    )
    await visitor.page.wait_for_url("**/ui/login?ended**", timeout=30_000)
    await expect(visitor.page.locator("#ended")).to_be_visible()
    draft = await visitor.page.evaluate(
        "Object.entries(localStorage).filter(([k]) => /draft/.test(k)).map(([, v]) => v).join()"
    )
    assert "not sent yet" in draft


async def test_the_keyboard_alone_is_enough(visitor: Visitor) -> None:
    chat, page = visitor.chat, visitor.page
    await page.keyboard.type(visitor.script("by hand", deltas=("Typed.",)))
    await page.keyboard.press("Enter")
    await chat.see("Typed.")
    again = visitor.script("once more", deltas=("Edited.",))
    await page.keyboard.press("ArrowUp")
    await page.keyboard.press("Control+a")
    await page.keyboard.type(again)
    await page.keyboard.press("Enter")
    await chat.see("Edited.")
    reached: set[str] = set()
    for _ in range(25):
        await page.keyboard.press("Tab")
        reached.add(
            await page.evaluate(
                "(({ textContent, placeholder }) => textContent || placeholder || '')"
                "(document.activeElement)"
            )
        )
    names = " ".join(reached)
    for name in ("Answer again", "Previous version", "Copy", "Edit", "plan", "New conversation"):
        assert name in names
    for name in ("Search titles", "Rename by hand", "Delete by hand", "Sign out"):
        assert name in names
    spoken = page.locator("#spoken")
    await expect(spoken).to_contain_text("Edited.")
    await expect(spoken).to_contain_text("The answer is complete.")


async def test_many_waiting_turns_take_two_connections_only(visitor: Visitor) -> None:
    chat = visitor.chat
    open_streams: set[Request] = set()

    def began(request: Request) -> None:
        if request.url.endswith("/events"):
            open_streams.add(request)

    def ended(request: Request) -> None:
        open_streams.discard(request)

    visitor.page.on("request", began)
    visitor.page.on("requestfinished", ended)
    visitor.page.on("requestfailed", ended)
    for number in range(6):
        await chat.send(visitor.script(f"wait {number};", deltas=("a ", "b "), delay_ms=150))
        await expect(chat.questions).to_have_count(number + 1)
        assert len(open_streams) <= 2
    await expect(chat.states).to_have_text(["● answered"] * 6, timeout=WITHIN_MS)
    await asyncio.wait_for(visitor.ended(6), 10)
    await as_stored(visitor, chat, answers=6)
