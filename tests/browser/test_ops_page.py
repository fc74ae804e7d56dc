"""The operator's view in a real browser: why turns ended, acts that are tried first, bad input."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from services.frontend_gateway.ports import Caller
from tests.browser.opening import COLOURS, WITHIN_MS, opened, violations
from tests.rig.broken_turns import BROKEN, EXPECTED
from tests.rig.gateway import GatewayRig
from tests.rig.house import House
from tests.rig.told_turns import plant

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

NARROW = 320
NOBODY = "00000000-0000-0000-0000-000000000000"
READ_EVERY_MS = 5_000
"""How often the page reads again by itself."""

DAY_MS = 24 * 3600 * 1000


@asynccontextmanager
async def at_ops(
    browser: Browser, rig: GatewayRig, *, width: int = 1280
) -> AsyncIterator[tuple[Page, Caller]]:
    """An operator on the wall of a planted deployment, whose clock can be put forward."""
    key, caller = rig.new_key(["admin"])
    async with opened(browser, rig.url, key, width=width) as page:
        await page.clock.install()
        await page.goto(f"{rig.url}/ui/ops")
        yield page, caller


async def go(page: Page, place: str, words: str | re.Pattern[str]) -> None:
    """Go to a part of the view and see its heading."""
    await page.evaluate("place => { location.hash = place; }", place)
    heading = page.get_by_role("heading", level=1)
    await expect(heading).to_contain_text(words, timeout=WITHIN_MS)


# What happened to a turn, in the real house.


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def operator(house: House, browser: Browser) -> AsyncIterator[Page]:
    """The page of somebody with a key of scope admin and nothing else."""
    key = await house.make_key(f"ops-{uuid4().hex[:8]}", scopes=("admin",))
    async with opened(browser, house.gateway_url(), key.key) as page:
        yield page


@pytest.mark.parametrize("name", list(BROKEN))
async def test_a_newcomer_finds_why_a_turn_ended(house: House, operator: Page, name: str) -> None:
    """The key of the request is all that is known; no word of the turn is ever told."""
    broken = await BROKEN[name](house)
    expected = EXPECTED[name]
    page = operator
    await page.goto(f"{house.gateway_url()}/ui/ops")
    services = page.get_by_role("heading", name="Services", exact=True)
    await expect(services).to_be_visible(timeout=WITHIN_MS)
    await page.get_by_label("Search by id or idempotency key").fill(broken.key)
    await page.keyboard.press("Enter")

    story = page.locator(".story")
    await expect(story.get_by_role("heading", level=1)).to_contain_text(
        f"{expected.status.capitalize()} ({expected.reason})", timeout=WITHIN_MS
    )
    await expect(story.locator(".why")).to_contain_text(expected.why)
    await expect(story.locator(".next")).not_to_be_empty()
    for service, text in expected.lines:
        line = story.locator(".lines li", has_text=text)
        await expect(line.first.locator(".service")).to_have_text(
            service.replace("_", " ").replace("llm", "LLM")
        )
    times = await story.locator(".lines .at").evaluate_all("all => all.map(at => at.dateTime)")
    assert times == sorted(times)
    told = await told_of(page, f"turns/{broken.turn_id}")
    assert len(told["turn"]["trace_id"]) == 32
    everything = [await page.content(), told]
    everything += [await told_of(page, path) for path in (f"search?q={broken.key}", "dead-letters")]
    assert broken.said[:24] not in str(everything)


async def told_of(page: Page, path: str) -> dict[str, Any]:
    """What the interface behind the page tells."""
    ask = "path => fetch(`/v1/ops/${path}`).then(answer => answer.json())"
    found: dict[str, Any] = await page.evaluate(ask, path)
    return found


# Acts, on twins.


async def test_an_act_is_read_before_it_is_done_and_the_keyboard_is_enough(
    rig: GatewayRig, browser: Browser
) -> None:
    ids = plant(rig.operators)
    async with at_ops(browser, rig) as (page, _):
        await go(page, f"/turn/{ids['running']}", "Generating for")
        button = page.get_by_role("button", name="End it with what was shown")
        await button.focus()
        drawn = await button.element_handle()
        await page.clock.fast_forward(READ_EVERY_MS)
        await page.wait_for_function("one => !one.isConnected", arg=drawn)
        await expect(button).to_be_focused()  # drawn again, it is still where the keyboard is
        await page.keyboard.press("Enter")
        panel = page.locator(".act")
        await expect(panel).to_contain_text("Nothing has happened yet")
        do_it = panel.get_by_role("button", name="End it with what was shown")
        await expect(do_it).to_be_focused()
        assert [dry for *_, dry in rig.operators.done] == [True]
        await page.keyboard.press("Enter")
        await expect(panel).to_contain_text("Done.")
        assert [(act, dry) for act, _, _, dry in rig.operators.done] == [
            ("reap", True),
            ("reap", False),
        ]


async def test_an_act_that_is_left_changes_nothing(rig: GatewayRig, browser: Browser) -> None:
    ids = plant(rig.operators)
    async with at_ops(browser, rig) as (page, _):
        await go(page, f"/dead-letter/{ids['letter']}", "set aside a record")
        await page.get_by_role("button", name="Handle it again").click()
        await page.get_by_role("button", name="Leave it as it is").click()
        await expect(page.locator(".act")).to_have_count(0)
        assert {dry for *_, dry in rig.operators.done} == {True}


async def test_every_figure_leads_to_the_list_behind_it(rig: GatewayRig, browser: Browser) -> None:
    plant(rig.operators)
    async with at_ops(browser, rig) as (page, _):
        figures = page.locator(".figure")
        await expect(figures.first).to_be_visible()
        places = await figures.evaluate_all("all => [...new Set(all.map(one => one.hash))]")
        assert len(places) >= 8
        await expect(figures.first).to_contain_text("0.1.0, 1 running")
        for place in places:
            await page.goto(f"{rig.url}/ui/ops{place}")
            await expect(page.locator(".back")).to_be_visible(timeout=WITHIN_MS)
            await expect(page.locator("#notice")).to_have_text("")


# How it looks, and to whom.


async def test_axe_finds_nothing_and_nothing_sticks_out_at_320_pixels(
    rig: GatewayRig, browser: Browser
) -> None:
    ids = plant(rig.operators)
    async with at_ops(browser, rig, width=NARROW) as (page, _):
        places = {
            "/": "LLM gateway is silent",
            f"/turn/{ids['failed']}": "Failed (provider_unavailable)",
            f"/turn/{ids['running']}": "Generating",
            f"/dead-letter/{ids['letter']}": "set aside",
            "/dead-letters": "Dead letters",
            "/leases": "Leases",
            "/services": "Processes",
            "/outbox": "Events that wait",
            "/turns": "Turns",
            f"/turn/{NOBODY}": "There is no such turn",
            "/search?q=nothing": "Nothing has this name",
        }
        of_every_colour = ("/", f"/turn/{ids['failed']}", f"/turn/{ids['running']}", "/leases")
        for place, words in places.items():
            await go(page, place, words)
            assert await violations(page) == [], place
            wide = await page.evaluate("document.documentElement.scrollWidth")
            assert wide <= NARROW, place
            if place in of_every_colour:
                await page.emulate_media(color_scheme="dark")
                assert await violations(page, COLOURS) == [], (place, "dark")
                await page.emulate_media(color_scheme="light")


async def test_a_key_without_the_scope_is_told_so(rig: GatewayRig, browser: Browser) -> None:
    async with opened(browser, rig.url, rig.key) as page:
        await page.goto(f"{rig.url}/ui/ops")
        heading = page.get_by_role("heading", level=1)
        await expect(heading).to_have_text("This page is for operators")
        assert await violations(page) == []


async def test_a_key_revoked_while_the_page_is_open_leads_to_the_sign_in_and_back_to_the_place(
    rig: GatewayRig, browser: Browser
) -> None:
    ids = plant(rig.operators)
    async with at_ops(browser, rig) as (page, caller):
        await go(page, f"/turn/{ids['running']}", "Generating for")
        for hash_, known in list(rig.store.keys.items()):
            if known.key_id == caller.key_id:
                del rig.store.keys[hash_]
        await page.clock.fast_forward(READ_EVERY_MS)
        await page.wait_for_url("**/ui/login**")
        another, _ = rig.new_key(["admin"])
        await page.get_by_label("API key").fill(another)
        await page.get_by_role("button", name="Sign in").click()
        heading = page.get_by_role("heading", level=1)
        await expect(heading).to_contain_text("Generating for")
        assert page.url.endswith(f"/ui/ops#/turn/{ids['running']}")


async def test_ids_with_markup_and_nonsense_are_only_text(
    rig: GatewayRig, browser: Browser
) -> None:
    plant(rig.operators)
    markup = "<img src=x onerror=alert(1)>"
    async with at_ops(browser, rig) as (page, _):
        await go(page, f"/search?q={markup}", "Nothing has this name")
        await expect(page.locator("code", has_text=markup)).to_be_visible()
        assert await page.locator("#page img").count() == 0
        await go(page, f"/turn/{markup}", "There is no such turn")
        await go(page, "/turn/%", "There is no such turn")
        await go(page, "/nowhere", "There is nothing here")
        await go(page, f"/dead-letter/{'9' * 3000}", "There is no such dead letter")


async def test_a_database_that_is_away_leaves_the_last_figures_and_says_so(
    rig: GatewayRig, browser: Browser
) -> None:
    plant(rig.operators)
    async with at_ops(browser, rig) as (page, _):
        await expect(page.locator(".figure").first).to_be_visible()
        rig.operators.is_away = True
        await page.clock.fast_forward(READ_EVERY_MS)
        notice = page.locator("#notice")
        await expect(notice).to_contain_text("What you see is older", timeout=WITHIN_MS)
        await expect(page.locator(".figure").first).to_be_visible()
        rig.operators.is_away = False
        await page.clock.fast_forward(READ_EVERY_MS)
        await expect(notice).to_have_text("", timeout=WITHIN_MS)


async def test_a_clock_that_is_wrong_by_a_day_changes_no_age(
    rig: GatewayRig, browser: Browser
) -> None:
    ids = plant(rig.operators)
    async with at_ops(browser, rig) as (page, _):
        await page.add_init_script(
            f"const now = Date.now.bind(Date); Date.now = () => now() + {DAY_MS};"
        )
        await page.goto(f"{rig.url}/ui/ops#/dead-letter/{ids['letter']}")
        await page.reload()
        await expect(page.locator(".facts time")).to_contain_text("minutes ago")
