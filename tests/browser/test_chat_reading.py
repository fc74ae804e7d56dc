"""What somebody notices who reads along while an answer comes, by eye or by ear."""

import asyncio

import pytest
from playwright.async_api import Browser, Route, expect

from tests.browser.asking import LONG, answered, ask, chatting, streamed, turns
from tests.browser.opening import WITHIN_MS
from tests.rig.gateway import GatewayRig

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

MAX_SHIFT = 0.002
"""Cumulative layout shift of a whole answer: none, but for a pixel's rounding."""

MAX_FALL_PX = 2
"""A pixel's rounding, twice."""

IS_AT_END = """() => {
  const { scrollHeight, scrollTop, clientHeight } = document.querySelector("#scroll");
  return scrollTop > 0 && scrollHeight - scrollTop - clientHeight < 2;
}"""

IS_STILL = """() => {
  const before = window.stood;
  window.stood = document.querySelector("#scroll").scrollTop;
  return before === window.stood;
}"""
"""For looking now and then: whether the page has not moved since the last look."""

WATCH_SHIFTS = """() => {
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const top = () => document.querySelector(".message").getBoundingClientRect().top;
  window.painted = async () => { await frame(); await frame(); };
  return painted().then(() => {
    Object.assign(window, { shift: 0, fall: 0, rise: 0 });
    new PerformanceObserver((list) => {
      for (const one of list.getEntries()) shift += one.value;
    }).observe({ type: "layout-shift" });
    let last = top();
    const look = () => {
      const now = top();
      window.fall = Math.max(fall, now - last);
      window.rise += Math.max(0, last - now);
      last = now;
      requestAnimationFrame(look);
    };
    look();
  });
}"""
"""Adds up what moves by itself from now on, and how far the text falls back while its end is read.

What is on the page, but not painted yet, comes first. Scrolling is no shift for the browser.
"""


async def test_nothing_jumps_while_an_answer_streams(rig: GatewayRig, browser: Browser) -> None:
    async with chatting(rig, browser) as chat:
        await answered(chat, rig, "Before", LONG)
        turn = await ask(chat, rig, "Tell me")
        await expect(chat.states).to_have_count(2)
        await chat.page.evaluate(WATCH_SHIFTS)
        for number in range(0, len(LONG), 9):
            await rig.write(turn, [LONG[number : number + 9]], n=2 + number // 9)
        await rig.finish(turn, LONG, f"1-{2 + (len(LONG) - 1) // 9}")
        await chat.see_state("● answered")
        shift, fall, rise = await chat.page.evaluate("painted().then(() => [shift, fall, rise])")
        assert shift < MAX_SHIFT
        assert fall < MAX_FALL_PX < rise, (fall, rise)


async def test_who_reads_above_is_left_there_and_finds_back(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        page, newest = chat.page, chat.page.locator("#newest")
        written = chat.prose.last.locator("blockquote")
        await answered(chat, rig, "Before", LONG)
        turn = await streamed(chat, rig, "Tell me")
        await rig.write(turn, [LONG])
        await page.wait_for_function(IS_AT_END, timeout=WITHIN_MS)
        await page.locator("#scroll").hover()
        await page.mouse.wheel(0, -300)
        await expect(newest).to_be_visible()
        place = await chat.questions.last.bounding_box()
        await rig.write(turn, [LONG, LONG], n=3)
        await expect(written).to_have_count(3)
        assert await chat.questions.last.bounding_box() == place
        await newest.click()
        await page.wait_for_function(IS_AT_END, timeout=WITHIN_MS)
        await rig.write(turn, [LONG], n=5)
        await expect(written).to_have_count(4)
        await page.wait_for_function(IS_AT_END, timeout=WITHIN_MS)
        await expect(newest).to_be_hidden()
        await rig.finish(turn, LONG * 4, "1-5")
        await chat.see_end_of(turn.assistant_message_id)


async def test_the_end_is_read_through_every_change_of_size_and_left_by_the_keyboard(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser, width=320) as chat:
        page, newest = chat.page, chat.page.locator("#newest")
        turn = await streamed(chat, rig, "Tell me")
        await rig.write(turn, [LONG])
        await expect(chat.prose.locator("blockquote")).to_have_count(1)
        await chat.composer.fill("\n".join("abcdefgh"))
        await page.wait_for_function(IS_AT_END, timeout=WITHIN_MS)
        await page.set_viewport_size({"width": 360, "height": 500})
        await page.wait_for_function(IS_AT_END, timeout=WITHIN_MS)
        await chat.composer.fill("")
        await page.locator("#scroll").press("ArrowUp")  # less than a line or two
        await expect(newest).to_be_visible()
        await page.wait_for_function(IS_STILL, polling=100, timeout=WITHIN_MS)
        place = await chat.questions.last.bounding_box()
        await rig.write(turn, [LONG], n=3)
        await expect(chat.prose.locator("blockquote")).to_have_count(2)
        assert await chat.questions.last.bounding_box() == place
        await page.locator("#scroll").press("End")
        await expect(newest).to_be_hidden()
        await rig.finish(turn, LONG * 2, "1-3", status="partial", reason="provider_cut")
        await expect(chat.answers).to_contain_text("the provider cut the stream")
        await page.wait_for_function(IS_AT_END, timeout=WITHIN_MS)


async def test_a_screen_reader_is_told_by_the_sentence(rig: GatewayRig, browser: Browser) -> None:
    async with chatting(rig, browser) as chat:
        spoken = chat.page.locator("#spoken")
        turn = await ask(chat, rig, "Tell me")
        await rig.write(turn, ["It is **late", "**. And it", " is "])
        await expect(spoken.locator("p")).to_have_text(["It is late ."])
        await rig.write(turn, ["dark.\n```\ncode();\n```\n"], n=5)
        text = "It is **late**. And it is dark.\n```\ncode();\n```\n"
        await rig.finish(turn, text, "1-5")
        await expect(spoken.locator("p")).to_have_text(
            ["It is late .", "And it is dark.", "A code block.", "The answer is complete."]
        )
        quick = await ask(chat, rig, "At once")
        await rig.finish(quick, "It was there. All of it.", "1-9")
        last = ["It was there.", "All of it.", "The answer is complete."]
        await expect(spoken.locator("p:nth-child(n + 5)")).to_have_text(last)


async def test_a_screen_reader_is_told_what_had_ended_before_the_page_knew_of_it(
    rig: GatewayRig, browser: Browser
) -> None:
    is_ended = asyncio.Event()

    async def hold(route: Route) -> None:
        async with asyncio.timeout(WITHIN_MS / 1_000):
            await is_ended.wait()
        await route.continue_()

    async with chatting(rig, browser) as chat:
        spoken = chat.page.locator("#spoken p")
        await answered(chat, rig, "Tell me", "It is late.")
        before = await spoken.count()
        await chat.page.route("**/messages?*", hold)
        await chat.act("Answer again")
        again = await turns(rig, 2)
        await rig.finish(again, "It was there. All of it.", "1-9")
        is_ended.set()
        await chat.see_end_of(again.assistant_message_id)
        told = ["It was there.", "All of it.", "The answer is complete."]
        await expect(spoken).to_have_text(["It is late.", "The answer is complete.", *told])
        await chat.page.reload()
        await chat.see("It was there. All of it.")
        await expect(spoken).to_have_count(0)
    assert before == 2
