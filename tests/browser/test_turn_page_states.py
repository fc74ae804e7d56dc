"""The plan inspector on twins: what it looks like in every state, at every size, by keyboard."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from services.frontend_gateway.core.turns import TurnView
from tests.browser.opening import opened, violations
from tests.browser.planted import Wanted, plant
from tests.browser.scenes_inspector import SETTINGS, answered, recovered, refused
from tests.rig.gateway import GatewayRig, gateway_rig

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

SIZES = ((1_440, 900), (640, 480), (320, 640))

STICKS_OUT = """() => new Promise(told => requestAnimationFrame(() => requestAnimationFrame(() => {
  const [all, main] = [document.documentElement, document.querySelector('main')];
  told(Object.entries({
    'the page is too wide': all.scrollWidth - all.clientWidth,
    'the page is too high': all.scrollHeight - all.clientHeight,
    'what scrolls is too wide': main.scrollWidth - main.clientWidth,
  }).filter(([, pixels]) => pixels > 0).map(([word]) => word));
})))"""
"""What is larger than its room, once a change of size was drawn."""

HUGE_BLOCKS = 10_001


@pytest_asyncio.fixture(loop_scope="session")
async def told() -> AsyncIterator[GatewayRig]:
    """A gateway that knows the operator's texts of the planted plans."""
    async with gateway_rig(**SETTINGS) as rig:
        yield rig


def now() -> datetime:
    return datetime.now(UTC)


def path(rig: GatewayRig, turn: TurnView) -> str:
    return f"{rig.url}/ui/turns/{turn.id}"


def every_state(rig: GatewayRig) -> dict[str, TurnView]:
    """A turn of each kind that the page must be able to show."""
    turns = {"answered": answered(rig), "partial": recovered(rig), "failed": refused(rig)}
    turns["first"] = plant(rig, Wanted("first", exchanges=0), now=now())
    turns["empty"] = plant(rig, Wanted("empty", exchanges=0, answer=""), now=now())
    turns["cancelled"] = plant(
        rig, Wanted("cancelled", exchanges=2, status="cancelled", reason="user"), now=now()
    )
    turns["running"] = plant(rig, Wanted("running", exchanges=2, status="generating"), now=now())
    turns["broken"] = broken(rig)
    turns["queued"] = plant(
        rig,
        Wanted("queued", exchanges=2, status="pending", ahead=2, has_plan=False),
        now=now(),
    )
    return turns


def broken(rig: GatewayRig) -> TurnView:
    """A turn whose plan broke a rule: it was kept, and sent to nobody."""
    wanted = Wanted("broken", exchanges=2, status="failed", reason="invariant")
    turn = plant(rig, wanted, now=now())
    (step,) = rig.store.step_rows[turn.id]
    refused = replace(step, state="refused", reason="invariant", invariant="trust_framed")
    rig.store.step_rows[turn.id] = [refused]
    rig.store.attempt_rows[turn.id] = []
    return turn


SENTENCES = {
    "broken": "Failed after 1.9 s: the plan broke a rule, so nothing was sent to the model.",
    "answered": "Answered in 1.9 s with ",
    "partial": "Stopped early after 13.4 s: the provider cut the stream.",
    "failed": "Failed after 58 ms: the message alone is larger than the model's window.",
    "first": "Answered in 1.9 s with 1 of 1 message, ",
    "empty": "Answered in 1.9 s with 1 of 1 message, ",
    "cancelled": "Cancelled after 1.9 s: you stopped it. The model saw 5 of 5 messages, ",
    "running": "Being answered for ",
    "queued": "Queued: 2 turns are before it.",
}


TOLD = {
    "partial": "Worker lost, attempt 1lost with its worker",
    "failed": "Step 1 was refused: context too large.",
    "broken": "Step 1 was refused: invariant, trust_framed: data was not set apart",
}
"""What the timeline tells beside the hops of a plain turn."""


async def is_whole(page: Page, sentence: str) -> None:
    """See everything that the page has to say about a turn."""
    await expect(page.locator("#sentence")).to_contain_text(sentence)
    await expect(page.locator("#blocks-title, #rest .state").first).to_be_visible()


async def test_every_state_fits_every_size_and_breaks_no_rule_of_access(
    told: GatewayRig, browser: Browser
) -> None:
    async with opened(browser, told.url, told.key) as page:
        for state, turn in every_state(told).items():
            await page.goto(path(told, turn))
            await is_whole(page, SENTENCES[state])
            await fits(page, state)
            await expect(page.locator(".times")).to_contain_text(TOLD.get(state, "Accepted"))
            opener = page.locator("#blocks .opener").first
            if await opener.count():
                await opener.click()
                await expect(page.locator("#detail .text")).to_be_visible()
                await fits(page, f"{state}, with a text")
            await is_open_to_all(page, state)
        await page.goto(f"{told.url}/ui/turns/nothing")
        await fits(page, "nothing")
        await is_open_to_all(page, "nothing")


async def fits(page: Page, state: str) -> None:
    """See that nothing sticks out, at any size."""
    for width, height in SIZES:
        await page.set_viewport_size({"width": width, "height": height})
        assert await page.evaluate(STICKS_OUT) == [], (state, width)


async def is_open_to_all(page: Page, state: str) -> None:
    """See that axe finds nothing, narrow in the dark and wide in the light."""
    await page.emulate_media(color_scheme="dark")
    assert await violations(page) == [], (state, "narrow and dark")
    await page.set_viewport_size({"width": SIZES[0][0], "height": SIZES[0][1]})
    await page.emulate_media(color_scheme="light")
    assert await violations(page) == [], (state, "wide and light")


async def test_left_out_rows_stand_in_their_place_with_the_reason_as_a_word(
    told: GatewayRig, browser: Browser
) -> None:
    turn = answered(told)
    gone = told.store.plan_rows[turn.id][0].plan["excluded_up_to_seq"]
    async with opened(browser, told.url, told.key) as page:
        await page.goto(path(told, turn))
        await expect(page.locator("#sentence")).to_contain_text(f"with {61 - gone} of 61 messages")
        rows = page.locator("#blocks .rows .row")
        await expect(rows.nth(2)).to_contain_text(f"Show {gone - 6} older")
        nearest = page.locator(".row.out .opener")
        assert await nearest.count() == 6
        await expect(rows.nth(8)).to_contain_text("no room")
        await expect(rows.nth(9).locator(".yes")).to_have_text("shown")
        await page.get_by_role("button", name=f"Show {gone - 6} older").click()
        await expect(page.locator(".row.older")).to_have_count(0)
        await page.locator("main").evaluate("node => node.scrollTo(0, 0)")
        await expect(nearest.first).to_have_text("message 1")
        await nearest.first.click()
        await expect(page.locator("#detail .why")).to_contain_text("Left out: no room.")
        await expect(page.locator("#detail .text")).to_contain_text("first ferry to the island")


async def test_ten_thousand_blocks_are_a_few_dozen_elements_and_reachable_to_the_last(
    told: GatewayRig, browser: Browser
) -> None:
    wanted = Wanted("huge", exchanges=(HUGE_BLOCKS - 1) // 2, budget=10_000_000, sentences=3)
    turn = plant(told, wanted, now=now())
    async with opened(browser, told.url, told.key) as page:
        await page.goto(path(told, turn))
        await expect(page.locator("#sentence")).to_contain_text("with 10,001 of 10,001 messages")
        rows = page.locator("#blocks .rows .row")
        assert await page.locator("#blocks").get_attribute("aria-rowcount") == "10004"
        for share in (0.25, 0.5, 0.75, 1.0):
            await page.locator("main").evaluate(
                "(node, share) => node.scrollTo(0, share * node.scrollHeight)", share
            )
            await expect(rows.first).to_be_attached()
            assert await rows.count() < 80
        last = page.locator(".opener", has_text="message to answer 10,001")
        await expect(last).to_be_visible()
        await last.focus()
        for _ in range(3):
            await page.keyboard.press("PageUp")
        focused = await page.evaluate("document.activeElement.closest('.row').ariaRowIndex")
        assert int(focused) == 10_004 - 30


async def test_the_keyboard_alone_opens_walks_and_closes(
    told: GatewayRig, browser: Browser
) -> None:
    turn = answered(told)
    async with opened(browser, told.url, told.key) as page:
        await page.goto(path(told, turn))
        await expect(page.locator("#sentence")).to_contain_text("of 61 messages")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")  # the link that skips to the blocks
        await page.keyboard.press("Tab")
        focused = page.locator(":focus")
        await expect(focused).to_have_text("system policy")
        await page.keyboard.press("Enter")
        await expect(page.locator("#detail h2")).to_be_focused()
        await expect(page.locator("#detail .text")).to_contain_text("plan trips by ferry")
        await page.keyboard.press("Escape")
        await expect(page.locator(".opener:focus")).to_have_text("system policy")
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await expect(page.locator("#detail h2")).to_have_text("Instructions")
        await page.keyboard.press("Escape")
        for _ in range(3):
            await page.keyboard.press("ArrowDown")
        await expect(page.locator(".row.out .opener:focus")).to_be_visible()


async def test_an_answer_of_a_megabyte_is_shown_in_part_until_somebody_wants_all(
    told: GatewayRig, browser: Browser
) -> None:
    turn = plant(told, Wanted("large", exchanges=1), now=now())
    rows = told.store.message_rows[turn.conversation_id]
    rows[1] = replace(rows[1], content="0123456789" * 100_000)
    async with opened(browser, told.url, told.key) as page:
        await page.goto(path(told, turn))
        # What was left out is known, so rows are not drawn again under the pointer.
        await expect(page.locator("#sentence")).to_contain_text("with 3 of 3 messages")
        await page.locator(".opener", has_text="answer").first.click()
        text = page.locator("#detail .text")
        await expect(text).to_be_visible()
        assert len(await text.text_content() or "") == 20_000
        await expect(page.locator("#detail")).to_contain_text("was changed since it was sent")
        await page.get_by_role("button", name="Show all 1,000,000 characters").click()
        assert len(await text.text_content() or "") == 1_000_000


async def test_a_lost_database_is_said_and_the_page_recovers_by_itself(
    told: GatewayRig, browser: Browser
) -> None:
    turn = answered(told)
    async with opened(browser, told.url, told.key) as page:
        told.store.is_away = True
        await page.goto(path(told, turn))
        title = page.get_by_role("heading", level=1)
        await expect(title).to_have_text("The turn could not be read")
        told.store.is_away = False
        await is_whole(page, SENTENCES["answered"])


async def test_a_turn_whose_conversation_is_deleted_meanwhile_keeps_what_was_read(
    told: GatewayRig, browser: Browser
) -> None:
    turn = answered(told)
    async with opened(browser, told.url, told.key) as page:
        await page.goto(path(told, turn))
        await is_whole(page, SENTENCES["answered"])
        told.store.deleted_conversations.add(turn.conversation_id)
        await page.get_by_role("button", name="Replay").click()
        await expect(page.locator(".result .why")).to_contain_text("There is nothing with this id")
