"""Hostile answers in a real browser: no script runs, nothing is asked elsewhere."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.browser import hostile_markdown
from tests.browser.opening import Chat, opened, sign_in
from tests.rig.gateway import GatewayRig

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

LEAST_INPUTS = 60

WHAT_IS_WRONG = """() => [...document.querySelectorAll(".prose *")].filter((node) =>
  !/^(P|DIV|SPAN|A|[UO]L|LI|H[3-6R]|BR|BLOCKQUOTE|CODE|PRE|EM|STRONG|DEL|BUTTON|INPUT)$/
    .test(node.tagName.replace(/^(TABLE|THEAD|TBODY|TR|TH|TD)$/, "DIV"))
  || (node.tagName === "INPUT" && !node.disabled)
  || [...node.attributes].some((one) => /^(on.*|style|src.*|id|name|form.*|action)$/.test(one.name))
  || (node.tagName === "A" && !/^(https?:\\/\\/|mailto:)/.test(node.href))
).map((node) => node.outerHTML.slice(0, 200))"""

PRESS_ALL = """() => { for (const node of document.querySelectorAll(".prose *")) {
  for (const name of ["pointerenter", "mouseover", "focus", "toggle", "load", "error"]) {
    node.dispatchEvent(new Event(name));
  }
  if (node.closest("a") === null) node.click();
} }"""

GROW_ALL = """async (texts) => {
  const { Prose } = await import("/ui/prose.js");
  for (const text of texts) {
    const node = document.createElement("div");
    node.className = "prose";
    document.getElementById("messages").append(node);
    const prose = new Prose(node);
    const step = Math.max(3, Math.ceil(text.length / 25));
    for (let at = 0; at < text.length; at += step) {
      prose.append(text.slice(at, at + step));
      prose.render();
    }
    prose.finish();
  }
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def elsewhere() -> AsyncIterator[tuple[str, list[str]]]:
    """A server that must not be asked, and what it was asked nevertheless."""
    asked: list[str] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readline()).decode("latin-1"))
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def test_the_corpus_is_as_large_as_was_promised() -> None:
    assert len(set(hostile_markdown.ALL.values())) >= LEAST_INPUTS


async def store_all(rig: GatewayRig, texts: list[str]) -> str:
    """Answers with these texts, in one conversation; its id."""
    conversation = await rig.conversation()
    for number, text in enumerate(texts):
        told = await rig.post(conversation, f"question {number}")
        await rig.finish(rig.store.turn_rows[UUID(told.json()["turn_id"])], text, "1-2")
    return conversation


async def show_all(page: Page, answers: int) -> None:
    """Load all pages of the conversation's messages, and bring each answer into sight once."""
    chat = Chat(page)
    await expect(chat.answers).not_to_have_count(0)
    earlier = page.get_by_role("button", name="Show earlier messages")
    while await chat.answers.count() < answers:
        shown = await chat.answers.count()
        await earlier.click()
        await expect(chat.answers).not_to_have_count(shown)


async def test_no_hostile_answer_runs_a_script_or_asks_elsewhere(
    rig: GatewayRig, browser: Browser, elsewhere: tuple[str, list[str]]
) -> None:
    address, asked = elsewhere
    texts = list(hostile_markdown.inputs(address).values())
    conversation = await store_all(rig, texts)
    async with opened(browser, rig.url, rig.key) as page:
        await page.goto(f"{rig.url}/ui/#{conversation}")
        await show_all(page, len(texts))
        await page.evaluate(GROW_ALL, texts)
        assert await page.locator(".prose").count() == 2 * len(texts)
        await page.evaluate(PRESS_ALL)
        assert await page.evaluate(WHAT_IS_WRONG) == []
        assert await page.evaluate("window.pwned") is None
        await expect(page.locator("#composer-text")).to_be_visible()
    assert asked == []


async def test_a_link_says_where_it_leads(rig: GatewayRig, browser: Browser) -> None:
    conversation = await store_all(rig, list(hostile_markdown.DECEPTIONS.values())[:4])
    async with opened(browser, rig.url, rig.key) as page:
        await page.goto(f"{rig.url}/ui/#{conversation}")
        prose = Chat(page).prose
        await expect(prose.nth(0)).to_have_text("https://bank.example (thief.example)")
        await expect(prose.nth(1).locator("a")).to_have_attribute("title", "https://thief.example/")
        await expect(prose.nth(2)).to_contain_text("xn--")
        await expect(prose.nth(3).locator("a")).to_have_attribute(
            "title", "https://bank.example@thief.example/"
        )
        for link in await prose.locator("a").all():
            await expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
            await expect(link).to_have_attribute("target", "_blank")


async def test_the_pages_policy_would_stop_a_script_that_slipped_through(
    rig: GatewayRig, browser: Browser
) -> None:
    page = await browser.new_page()
    try:
        await sign_in(page, rig.url, rig.key)
        answer = await page.reload()
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "trusted-types 'none'" in policy
        is_refused = await page.evaluate(
            """() => {
              try {
                document.body.insertAdjacentHTML("beforeend", "<b>x</b>");
                return false;
              } catch { return true; }
            }"""
        )
        assert is_refused
        assert await page.locator("body > b").count() == 0
    finally:
        await page.close()
