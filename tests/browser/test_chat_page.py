"""The chat page in a real browser, before a gateway on twins: bad input, looks, access, weight."""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, CDPSession, Page, Request, expect

from services.frontend_gateway.core.turns import TurnView
from tests.browser.asking import LONG, answered, ask, chatting, refused, streamed, turns
from tests.rig.gateway import GatewayRig
from tests.rig.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
UNKNOWN = "0190f0f0-0000-7000-8000-000000000000"
MEGABYTE = 1_000_000
MAX_PAGE_BYTES = 100_000
FIRST_PAINT_MS = 1_000
"""On a machine that is busy with other tests; alone it takes about a tenth."""

FRAMES = 60
MAX_FRAME_MS = 16
"""Sixty frames a second; alone on a machine it takes about a quarter of it."""

MAX_GROWTH = 10
"""An open block is read anew up to a bound, so that some shapes cost two to five times; what read
all that came so far would cost fifteen times."""

MAX_KEPT_BYTES = 30_000_000
"""Four texts, their elements, and what is known of their last blocks."""

TYPE_AND_SCROLL = """async (frames) => {
  const scroll = document.getElementById("scroll");
  const field = document.getElementById("composer-text");
  for (let n = 0; n < frames; n += 1) {
    field.value += "x"; field.dispatchEvent(new Event("input"));
    scroll.scrollTop = scroll.scrollHeight * (n % 20) / 20;
    await new Promise(requestAnimationFrame);
  }
}"""

GROW = """async ([opening, piece]) => {
  const { Prose } = await import("/ui/prose.js");
  const { Speech } = await import("/ui/speech.js");
  const node = document.createElement("div");
  document.getElementById("messages").append(node);
  const [prose, speech] = [new Prose(node), new Speech()];
  prose.append(opening, true);
  const times = [];
  for (let batch = 0; batch < 80; batch += 1) {
    const began = performance.now();
    for (let n = 0; n < 6; n += 1) {
      prose.append(piece, true);
      speech.add(piece);
    }
    times.push(performance.now() - began);
  }
  // The quietest of each ten: what else runs on the machine only adds.
  return [Math.min(...times.slice(0, 10)), Math.min(...times.slice(-10))];
}"""

WIDE, DARK_WIDE = (1_440, 900, False), (1_440, 900, True)
NARROW, DARK_NARROW = (320, 640, False), (320, 640, True)
TWICE_AS_LARGE = (640, 400, False)
"""A window of 1,280 by 800 at 200 %."""


async def violations(page: Page) -> list[str]:
    """What axe finds to be serious or critical; its script comes from outside the page's policy."""
    await page.evaluate(AXE.read_text())
    found = await page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{one['id']}: {[node['html'][:120] for node in one['nodes']]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


async def overflow(page: Page) -> int:
    """Pixels by which the page, or a part of it that scrolls, is wider than it may be."""
    width: int = await page.evaluate(
        """Math.max(...[document.documentElement, ...document.querySelectorAll("#scroll, #side")]
          .map((one) => one.scrollWidth - one.clientWidth))"""
    )
    return width


# Bad input


async def test_an_unknown_address_is_a_plain_page(rig: GatewayRig, browser: Browser) -> None:
    async with chatting(rig, browser) as chat:
        for path in ("nothing", "turns/", "vendor/nothing.js", "chat.html", "%3Cb%3E"):
            answer = await chat.page.goto(f"{rig.url}/ui/{path}")
            assert answer is not None
            assert answer.status == 404
            assert answer.headers["content-type"].startswith("text/html")
            await expect(chat.page.get_by_role("heading", level=1)).to_be_visible()
            assert "<b>" not in await chat.page.content()


async def test_an_id_that_nobody_may_see_is_told_in_words(
    rig: GatewayRig, browser: Browser
) -> None:
    foreign, _ = rig.new_key()
    made = await rig.client.post(
        "/v1/conversations", json={}, headers={"Authorization": f"Bearer {foreign}"}
    )
    markup = "<img src=x onerror=alert(1)>"
    async with chatting(rig, browser) as chat:
        for id_ in (UNKNOWN, made.json()["id"], markup, quote(markup), "%E0"):
            await chat.page.goto(f"{rig.url}/ui/#{id_}")
            await expect(chat.page.get_by_role("heading", name="cannot be shown")).to_be_visible()
            await expect(chat.composer).to_be_hidden()
            assert await chat.page.locator("#messages img").count() == 0
            await chat.page.get_by_role("button", name="New conversation").last.click()
            await expect(chat.composer).to_be_visible()


async def test_a_wrong_key_is_told_and_the_right_one_leads_back(
    rig: GatewayRig, browser: Browser
) -> None:
    conversation = await rig.conversation()
    async with chatting(rig, browser) as chat:
        page = chat.page
        await page.context.clear_cookies()
        await page.goto("about:blank")
        await page.goto(f"{rig.url}/ui/#{conversation}")
        await page.wait_for_url(f"**/ui/login?ended#{conversation}")
        await page.get_by_label("API key").fill(rig.key + "x")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("This key is not valid")
        await page.get_by_label("API key").fill(f" {rig.key} ")
        await page.keyboard.press("Enter")
        await expect(page.locator(".empty")).to_contain_text("Nothing was said")
        assert chat.conversation == conversation


async def test_an_answer_of_a_megabyte_leaves_the_page_usable(
    rig: GatewayRig, browser: Browser
) -> None:
    paragraph = "A line of a log that goes on and on, and nobody reads it. " * 8 + "\n\n"
    parts = {
        "many blocks": paragraph * 2_200,
        "one line": "x" * 250_000,
        "one code block": "```\n" + "x = 1  # a line of a program\n" * 9_000 + "```\n",
    }
    async with chatting(rig, browser) as chat:
        assert len(parts["many blocks"]) > MEGABYTE
        for number, text in enumerate(parts.values()):
            turn = await ask(chat, rig, f"question {number}")
            await rig.finish(turn, text, "1-2")
            await chat.see_state("● answered")
        await chat.composer.fill("still here")
        await chat.page.reload()
        await expect(chat.answers).to_have_count(3)
        await expect(chat.composer).to_have_value("still here")
        for number, text in enumerate(parts.values()):
            assert await chat.copied(chat.answers.nth(number)) == text


async def test_a_title_of_ten_thousand_characters_takes_one_line(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser, width=320) as chat:
        turn = await ask(chat, rig, "A" * 1_000)
        *owner, view = rig.store.conversation_rows[turn.conversation_id]
        long = replace(view, title="<b>" + "wide " * 2_000)
        rig.store.conversation_rows[turn.conversation_id] = (owner[0], owner[1], long)
        await chat.page.reload()
        await chat.page.get_by_role("button", name="Conversations").click()
        entry = chat.list.first
        await expect(entry).to_be_visible()
        box = await entry.bounding_box()
        assert box is not None
        assert box["height"] < 60
        assert await overflow(chat.page) == 0
        assert await chat.list.locator("b").count() == 0
        await entry.get_by_role("button", name="Rename").click()
        assert len(await chat.page.get_by_label("Title", exact=True).input_value()) == 200


async def test_a_clock_that_is_a_day_wrong_changes_no_time(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        page = chat.page
        turn = await ask(chat, rig, "What time is it?")
        *owner, view = rig.store.conversation_rows[turn.conversation_id]
        fresh = replace(view, created_at=datetime.now(UTC) - timedelta(minutes=5))
        rig.store.conversation_rows[turn.conversation_id] = (owner[0], owner[1], fresh)
        for days in (1, -1):
            await page.clock.set_fixed_time(datetime.now(UTC) + timedelta(days=days))
            await page.reload()
            await expect(chat.list.locator("time")).to_have_text("5 minutes ago")
        await chat.list.hover()
        await chat.list.get_by_role("button", name="Delete").click()
        await page.clock.set_fixed_time(datetime.now(UTC))  # somebody sets it right
        await page.reload()
        await expect(chat.list).to_contain_text("Undo")
        await expect(chat.list).to_contain_text("possible for 10 min")


async def test_a_message_that_is_refused_can_be_taken_back(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        question = await refused(chat, rig, "One too many")
        await question.get_by_role("button", name="Take it back").click()
        await expect(chat.composer).to_have_value("One too many")
        await expect(chat.questions).to_have_count(1)
        await chat.composer.press("Enter")
        await expect(question).to_contain_text("not sent")
        rig.ingestion.problem = None
        await question.get_by_role("button", name="Send again").click()
        await turns(rig, 2)
        await expect(chat.answers).to_have_count(2)


async def test_the_line_under_an_answer_stays_while_it_is_pressed(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        turn = await streamed(chat, rig, "Why?")
        await rig.write(turn, ["Because "])
        await chat.see("Because")
        plan = chat.answers.get_by_role("link", name="plan")
        await expect(plan).to_have_attribute("href", f"/ui/turns/{turn.id}")
        await expect(chat.answers).to_contain_text(re.compile(r"◌ answering.?first token \d"))
        await chat.answers.get_by_role("button", name="Stop").hover()
        await chat.page.mouse.down()
        await rig.write(turn, ["it is ", "so."], n=3)
        await chat.see("Because it is so.")
        await chat.page.mouse.up()
        await chat.see_state("◌ stopping")
        text = "Because it is so."
        await rig.finish(turn, text, "1-4", status="cancelled", reason="user")
        await chat.see_state("✕ cancelled")


# The text


@pytest.mark.parametrize("has_late_link", [False, True])
async def test_markdown_grows_into_the_same_page_as_it_is_read_from_the_rows(
    rig: GatewayRig, browser: Browser, has_late_link: bool
) -> None:
    text = LONG * 2 + "\na | b\n- | -\n1 | 2\n\n- one\n\n- two\r\n\r\nA [late] link.\n"
    text += "\nMore.\n\nAnd more.\n\n[late]: https://late.example/\n" if has_late_link else ""
    async with chatting(rig, browser) as chat:
        turn = await ask(chat, rig, "Tell me")
        pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
        await rig.write(turn, pieces[:-30])
        await expect(chat.prose.locator("table")).not_to_have_count(0)
        await rig.write(turn, pieces[-30:], n=2 + len(pieces) - 30)
        await rig.finish(turn, text, f"1-{1 + len(pieces)}")
        await chat.see_state("● answered")
        grown = await chat.prose.inner_html()
        assert await chat.copied(chat.answers.last) == text
        await chat.page.reload()
        await chat.see_state("● answered")
        await expect(chat.prose.locator("table")).to_have_count(3)
        assert await chat.prose.inner_html() == grown
        assert await chat.prose.locator("a", has_text="late").count() == has_late_link


async def test_only_the_last_blocks_are_made_again_while_an_answer_grows(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        turn = await ask(chat, rig, "Slowly")
        await rig.write(turn, ["First.\n\n", "Second.\n\n", "Third.\n\n", "Fourth."])
        await expect(chat.prose.locator("p")).to_have_count(4)
        await chat.prose.evaluate(
            "node => [...node.children].forEach((one) => { one.kept = true; })"
        )
        await rig.write(turn, [" More.", "\n\nFifth."], n=6)
        await expect(chat.prose.locator("p")).to_have_count(5)
        kept = await chat.prose.evaluate("node => [...node.children].map((one) => !!one.kept)")
        assert kept == [True, True, True, False, False]


async def test_a_long_answer_does_not_slow_typing_or_scrolling(
    rig: GatewayRig, browser: Browser
) -> None:
    sentences = [f"Sentence {n} of a long answer, with **weight**.\n\n" for n in range(1_250)]
    async with chatting(rig, browser) as chat:
        turn = await streamed(chat, rig, "Ten thousand words")
        await rig.write(turn, sentences[:1_150])
        await expect(chat.prose.locator("p")).to_have_count(1_150)
        writing = asyncio.create_task(_keep_writing(rig, turn, sentences))
        session = await chat.page.context.new_cdp_session(chat.page)
        await session.send("Performance.enable")
        before = await _worked_ms(session)
        await chat.page.evaluate(TYPE_AND_SCROLL, FRAMES)
        worked_ms = (await _worked_ms(session) - before) / FRAMES
        await writing
        await rig.finish(turn, "".join(sentences), f"1-{1 + len(sentences)}")
        await chat.see_state("● answered")
    assert worked_ms < MAX_FRAME_MS, f"a frame took {worked_ms:.1f} ms of work"


async def _keep_writing(rig: GatewayRig, turn: TurnView, sentences: Sequence[str]) -> None:
    for number in range(1_150, len(sentences)):
        await rig.write(turn, [sentences[number]], n=2 + number)
        await asyncio.sleep(0.01)  # the pace of a model, not a wait


async def _worked_ms(session: CDPSession) -> float:
    """What the page's scripts, styles and layout have taken; idle time and painting aside."""
    named = await _metrics(session)
    return 1_000 * sum(
        named[name] for name in ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
    )


async def test_the_end_of_a_long_answer_costs_no_more_than_its_beginning(
    rig: GatewayRig, browser: Browser
) -> None:
    shapes = {
        "many blocks": ["", "A line of a paragraph, quite short, and its end.\n\n"],
        "one line": ["", "x" * 50],
        "one code block": ["```\n", "x = 1  # a line of a program which is not so short\n"],
        "one list": ["", "- a line of a list, which is one block for all its items\n"],
    }
    async with chatting(rig, browser) as chat:
        session = await chat.page.context.new_cdp_session(chat.page)
        await session.send("Performance.enable")
        before = await _heap_bytes(session)
        for shape, (opening, line) in shapes.items():
            first, last = await chat.page.evaluate(GROW, [opening, line * 10])
            assert last < MAX_GROWTH * first, (shape, first, last)
        kept = await _heap_bytes(session) - before
    assert kept < MAX_KEPT_BYTES, f"{kept / 1e6:.1f} MB for four answers of 240 kB"


async def _heap_bytes(session: CDPSession) -> float:
    await session.send("HeapProfiler.collectGarbage")
    return (await _metrics(session))["JSHeapUsedSize"]


async def _metrics(session: CDPSession) -> dict[str, float]:
    told = await session.send("Performance.getMetrics")
    return {one["name"]: one["value"] for one in told["metrics"]}


# Looks and access


async def suits(page: Page, *looks: tuple[int, int, bool]) -> None:
    """See that a page fits and that axe finds nothing, at every width, height and theme."""
    for width, height, is_dark in looks:
        await page.set_viewport_size({"width": width, "height": height})
        theme: Literal["dark", "light"] = "dark" if is_dark else "light"
        # Without motion, since what is half faded away has no contrast.
        await page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        assert await violations(page) == [], (width, is_dark)
        assert await overflow(page) == 0, width


async def test_the_page_fits_and_axe_finds_nothing_serious(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        page = chat.page
        await suits(page, WIDE, DARK_NARROW)
        await answered(chat, rig, "Cut?", "Cut ", status="partial", reason="provider_cut")
        await answered(chat, rig, "And?", "", status="failed", reason="provider_unavailable")
        await answered(chat, rig, "How long does the crossing take?", LONG)
        await suits(page, TWICE_AS_LARGE)
        await expect(chat.composer).to_be_in_viewport()
        again = chat.answers.last.get_by_role("button", name="Answer again")
        await expect(again).to_be_in_viewport()
        await ask(chat, rig, "Still there? " + "x" * 300)
        await expect(chat.states.last).to_have_text("◌ thinking")
        await suits(page, DARK_WIDE, NARROW, DARK_NARROW)
        await page.get_by_role("button", name="Conversations").click()
        await expect(page.locator("#side")).to_be_visible()
        await suits(page, DARK_NARROW)
        await suits(page, WIDE)
        await page.get_by_role("button", name="Conversations").click()
        await expect(page.locator("#side")).to_be_hidden()
        for path in ("/ui/login", "/ui/nothing"):
            await page.goto(f"{rig.url}{path}")
            await suits(page, WIDE, DARK_NARROW)


async def test_the_theme_can_be_chosen_and_stays(rig: GatewayRig, browser: Browser) -> None:
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    async with chatting(rig, browser) as chat:
        light = await chat.page.evaluate(paper)
        await chat.page.get_by_role("button", name="Switch between light and dark").click()
        dark = await chat.page.evaluate(paper)
        assert dark != light
        await chat.page.reload()
        assert await chat.page.evaluate(paper) == dark


# Time and sight


HIDE = """(isHidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
WORDS = [f"word{number} " for number in range(30)]


def resumed(page: Page) -> list[str]:
    """The positions from which the page went on with a stream, from now on."""
    seen: list[str] = []

    def note(request: Request) -> None:
        if "last-event-id" in request.headers:
            seen.append(request.headers["last-event-id"])

    page.on("request", note)
    return seen


async def test_a_machine_that_slept_goes_on_where_it_was(rig: GatewayRig, browser: Browser) -> None:
    async with chatting(rig, browser) as chat:
        page = chat.page
        await page.clock.install()
        await page.reload()
        positions = resumed(page)
        turn = await ask(chat, rig, "Good night")
        await rig.write(turn, WORDS[:10])
        await chat.see("".join(WORDS[:10]))
        await page.clock.fast_forward("01:00:00")

        async def has_resumed() -> bool:
            return bool(positions)

        await until(has_resumed)
        assert positions[0] == "1-11"
        await rig.write(turn, WORDS[10:], n=12)
        await rig.finish(turn, "".join(WORDS), "1-31")
        await chat.see_state("● answered")
        assert await chat.copied(chat.answers.last) == "".join(WORDS)
        await chat.is_quiet()


async def test_a_page_that_nobody_looks_at_gives_its_connections_back(
    rig: GatewayRig, browser: Browser
) -> None:
    async with chatting(rig, browser) as chat:
        page = chat.page
        await page.clock.install()
        await page.reload()
        positions = resumed(page)
        turn = await ask(chat, rig, "Are you there?")
        await rig.write(turn, WORDS[:10])
        await chat.see("".join(WORDS[:10]))

        async def has_none() -> bool:
            return rig.gateway.hub.stream_count + rig.gateway.watchers.stream_count == 0

        await page.evaluate(HIDE, True)
        await page.clock.fast_forward("00:30")
        await until(has_none)
        await expect(chat.notice).to_have_text("")
        await rig.write(turn, WORDS[10:20], n=12)
        await page.evaluate(HIDE, False)
        await chat.see("".join(WORDS[:20]))
        assert positions == ["1-11"]
        await rig.write(turn, WORDS[20:], n=22)
        await rig.finish(turn, "".join(WORDS), "1-31")
        await chat.see_state("● answered")
        assert await chat.copied(chat.answers.last) == "".join(WORDS)


# Weight


async def test_the_page_is_light_and_painted_at_once(rig: GatewayRig, browser: Browser) -> None:
    async with chatting(rig, browser) as chat:
        session = await chat.page.context.new_cdp_session(chat.page)
        await session.send("Network.clearBrowserCache")
        await chat.page.reload(wait_until="networkidle")
        weights = json.loads(
            await chat.page.evaluate(
                """JSON.stringify(performance.getEntries()
                  .filter((one) => one.encodedBodySize && !one.name.includes("/v1/"))
                  .map((one) => [one.name, one.encodedBodySize]))"""
            )
        )
        painted = await chat.page.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
    sent = sum(size for _, size in weights)
    assert sent < MAX_PAGE_BYTES, weights
    assert painted < FIRST_PAINT_MS
