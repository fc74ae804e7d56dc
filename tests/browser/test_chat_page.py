"""The chat page in a real browser: signs in, streams, survives reloads and lost connections."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.ports import PlanView
from tests.rig.gateway import AT, GatewayRig, gateway_rig

pytestmark = pytest.mark.browser

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SCREENSHOTS = os.environ.get("TURNWIRE_SCREENSHOTS")
WORDS = [f"word{i} " for i in range(40)]


@pytest.fixture
async def rig() -> AsyncIterator[GatewayRig]:
    async with gateway_rig() as rig:
        yield rig


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        await browser.close()


@contextlib.asynccontextmanager
async def signed_in(
    browser: Browser, rig: GatewayRig, *, width: int = 1280, dark: bool = False
) -> AsyncIterator[Page]:
    context = await browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
    )
    page = await context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda message: (
            errors.append(message.text) if "Content Security Policy" in message.text else None
        ),
    )
    await page.goto(f"{rig.url}/ui/")
    await page.wait_for_url("**/ui/login")
    await page.get_by_label("API key").fill(rig.key)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url("**/ui/")
    yield page
    await context.close()
    assert errors == []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def ask(page: Page, rig: GatewayRig, text: str) -> TurnView:
    known = set(rig.store.turn_rows)
    await page.get_by_label("Message", exact=True).fill(text)
    await page.get_by_label("Message", exact=True).press("Enter")
    await until(lambda: len(rig.store.turn_rows) > len(known))
    (turn_id,) = set(rig.store.turn_rows) - known
    await until(lambda: rig.gateway.hub.stream_count == 1)
    return rig.store.turn_rows[turn_id]


async def shot(page: Page, name: str) -> None:
    if SCREENSHOTS:
        await page.screenshot(path=str(Path(SCREENSHOTS) / f"{name}.png"))


def a_plan(turn: TurnView) -> PlanView:
    blocks = [
        {
            "id": "system",
            "kind": "system",
            "trust": "operator",
            "source": "policy",
            "version": "1",
            "tokens": 24,
            "seq": None,
        },
        *(
            {
                "id": str(turn.user_message_id),
                "kind": "message",
                "trust": "user" if seq % 2 else "model",
                "source": "conversation",
                "version": None,
                "tokens": 40 + seq,
                "seq": seq,
            }
            for seq in range(1, 5)
        ),
        {
            "id": str(turn.user_message_id),
            "kind": "current",
            "trust": "user",
            "source": "conversation",
            "version": None,
            "tokens": 12,
            "seq": turn.seq,
        },
    ]
    plan = {
        "assembly_revision": 1,
        "model": "smollm2",
        "tokenizer": "o200k_base",
        "fingerprint": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "blocks": blocks,
        "excluded": [{"id": str(turn.id), "reason": "budget"}],
        "excluded_up_to_seq": 1,
        "budget": {
            "window": 8192,
            "reply_reserve": 512,
            "tokens": 1000,
            "used": 206,
            "sections": [
                {"section": "system", "before": 1000, "used": 24, "after": 976},
                {"section": "current", "before": 976, "used": 12, "after": 964},
                {"section": "history", "before": 964, "used": 170, "after": 794},
            ],
        },
        "count": 5,
        "seq_range": [1, turn.seq],
        "history": {"base_seq": turn.seq, "loaded": 5, "kept": 4, "trimmed": 1},
    }
    return PlanView(turn.id, 1, plan, AT)


async def test_an_answer_streams_in_and_survives_a_reload(
    rig: GatewayRig, browser: Browser
) -> None:
    async with signed_in(browser, rig) as page:
        turn = await ask(page, rig, "When does the ferry leave?")
        answer = page.locator(".message.assistant .text")
        await rig.write(turn, WORDS[:10])
        await expect(answer).to_have_text("".join(WORDS[:10]).strip())
        await expect(page.locator(".state")).to_have_text("◌ answering")
        await page.reload()
        await expect(answer).to_have_text("".join(WORDS[:10]).strip())
        await rig.write(turn, WORDS[10:], n=12)
        await rig.finish(turn, "".join(WORDS), "1-41")
        await expect(page.locator(".state")).to_have_text("● answered")
        assert await answer.evaluate("node => node.textContent") == "".join(WORDS)
        await expect(page.locator("#conversations button")).to_have_count(1)
        assert len(rig.store.turn_rows) == 1


async def test_a_lost_connection_loses_and_repeats_nothing(
    rig: GatewayRig, browser: Browser
) -> None:
    async with signed_in(browser, rig) as page:
        turn = await ask(page, rig, "Tell me everything")
        await rig.write(turn, WORDS[:10])
        answer = page.locator(".message.assistant .text")
        await expect(answer).to_have_text("".join(WORDS[:10]).strip())
        await page.context.set_offline(True)
        await rig.gateway.hub.drain(0.0)
        await until(lambda: rig.gateway.hub.stream_count == 0)
        await expect(page.locator("#notice")).to_have_text("Reconnecting…")
        await rig.write(turn, WORDS[10:20], n=12)
        rig.gateway.hub.resume()
        await page.context.set_offline(False)
        await expect(answer).to_have_text("".join(WORDS[:20]).strip())
        await rig.write(turn, WORDS[20:], n=22)
        await rig.finish(turn, "".join(WORDS), "1-41")
        await expect(page.locator(".state")).to_have_text("● answered")
        assert await answer.evaluate("node => node.textContent") == "".join(WORDS)


async def test_a_message_that_was_not_confirmed_is_stored_once(
    rig: GatewayRig, browser: Browser
) -> None:
    async with signed_in(browser, rig) as page:
        rig.ingestion.is_away = True
        await page.get_by_label("Message", exact=True).fill("Book it")
        await page.get_by_label("Message", exact=True).press("Enter")
        await expect(page.locator("#notice")).to_contain_text("Sending again")
        await page.reload()
        rig.ingestion.is_away = False
        await until(lambda: len(rig.store.turn_rows) == 1)
        await expect(page.locator(".message.user")).to_have_text("Book it")
        (turn,) = rig.store.turn_rows.values()
        await rig.finish(turn, "Done.", "1-2")
        await expect(page.locator(".message.assistant .text")).to_have_text("Done.")
        assert len(rig.store.turn_rows) == 1
        assert len(rig.store.conversation_rows) == 1


async def test_text_is_never_markup(rig: GatewayRig, browser: Browser) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script><b>bold</b>"
    async with signed_in(browser, rig) as page:
        turn = await ask(page, rig, hostile)
        await rig.write(turn, [hostile])
        await rig.finish(turn, hostile, "1-2")
        await expect(page.locator(".message.assistant .text")).to_have_text(hostile)
        await expect(page.locator(".message.user .text")).to_have_text(hostile)
        assert await page.locator("#messages img, #messages script, #messages b").count() == 0


async def test_the_plan_of_an_answer_is_one_click_away(rig: GatewayRig, browser: Browser) -> None:
    async with signed_in(browser, rig) as page:
        turn = await ask(page, rig, "Why?")
        rig.store.plan_rows[turn.id] = [a_plan(turn)]
        await rig.write(turn, ["Because."])
        await rig.finish(turn, "Because.", "1-2")
        await page.get_by_role("button", name="plan").click()
        panel = page.get_by_role("complementary", name="Plan of an answer")
        await expect(panel).to_contain_text("with 5 of 6 messages")
        await expect(panel.locator(".block.out")).to_contain_text("budget")
        await page.keyboard.press("Escape")
        await expect(panel).to_be_hidden()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1440, 320])
async def test_the_page_fits_wide_and_narrow_in_both_themes(
    rig: GatewayRig, browser: Browser, width: int, dark: bool
) -> None:
    name = f"{'dark' if dark else 'light'}-{width}"
    async with signed_in(browser, rig, width=width, dark=dark) as page:
        await shot(page, f"empty-{name}")
        turn = await ask(page, rig, "How long does the crossing take, and where do I buy a ticket?")
        text = "The crossing takes forty minutes.\n\n" + "Tickets are sold on board. " * 12
        await rig.write(turn, [text])
        rig.store.plan_rows[turn.id] = [a_plan(turn)]
        await rig.finish(turn, text, "1-2", status="partial", reason="provider_cut")
        await expect(page.locator(".state")).to_have_text("◐ stopped early")
        await shot(page, f"chat-{name}")
        await page.get_by_role("button", name="plan").click()
        await expect(page.locator("#plan .block").first).to_be_visible()
        await shot(page, f"plan-{name}")
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await page.evaluate(overflow) == 0
        for path in ("/docs", "/problems/not-found", "/ui/login"):
            await page.goto(f"{rig.url}{path}")
            await shot(page, f"{path.strip('/').replace('/', '-')}-{name}")
            assert await page.evaluate(overflow) == 0


async def test_the_page_loads_nothing_from_elsewhere_and_little(
    rig: GatewayRig, browser: Browser
) -> None:
    async with signed_in(browser, rig) as page:
        urls: list[str] = []
        page.on("request", lambda request: urls.append(request.url))
        await page.reload()
        await page.wait_for_load_state("networkidle")
        assert urls
        assert all(url.startswith(rig.url) for url in urls)
        size = 0
        for url in {url for url in urls if "/ui/" in url}:
            size += len((await rig.client.get(url)).content)
        assert size < 100_000
