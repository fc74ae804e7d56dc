"""Opens pages in a real browser, signed in, and fails on what the page should never do."""

import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

from playwright.async_api import Browser, BrowserContext, Locator, Page, Request, expect

from tests.rig.house import ApiKey, House
from tests.rig.provider import RecordedRequest, Rule
from tests.rig.waiting import until

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
WITHIN_MS = 15_000
"""Longest wait for something to show on a page; the machine may be busy."""

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")
COLOURS = ("color-contrast",)
"""What a change of the theme can break."""

ENDED = re.compile("completed|partial|failed|cancelled")
"""States in which an answer stays, as the page marks them."""

OPEN_STATE = '.state:is([data-state="pending"], [data-state="generating"])'
"""Finds answers that are still waited for."""

NOT_COPIED = "what lay on the clipboard before"

expect.set_options(timeout=WITHIN_MS)


@dataclass
class Watched:
    """What a page did that it should not, beside what the test looks at.

    Attributes:
        faults: Uncaught errors, and what the content policy refused.
        elsewhere: Requests that left the server.
    """

    origin: str
    faults: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        """Listen to a page from now on."""
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", self._note)
        page.on("dialog", lambda dialog: self.faults.append(f"a dialog: {dialog.message}"))
        page.on(
            "console",
            lambda message: (
                self.faults.append(message.text)
                if "Content Security Policy" in message.text or "TrustedHTML" in message.text
                else None
            ),
        )

    def _note(self, request: Request) -> None:
        if not request.url.startswith((self.origin, "blob:", "about:")):
            self.elsewhere.append(request.url)

    def verify(self) -> None:
        """Fail if anything was seen."""
        assert self.faults == []
        assert self.elsewhere == []


async def sign_in(page: Page, url: str, key: str) -> None:
    """Go to the chat page with a key, as a person does it for the first time."""
    await page.goto(f"{url}/ui/")
    await page.wait_for_url("**/ui/login**")
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url("**/ui/")


@contextlib.asynccontextmanager
async def opened(
    browser: Browser,
    url: str,
    key: str,
    *,
    width: int = 1280,
    height: int = 800,
    dark: bool = False,
) -> AsyncIterator[Page]:
    """A chat page of somebody who signed in before; it must do nothing that it should not."""
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        permissions=["clipboard-read", "clipboard-write"],
        timezone_id="UTC",
        storage_state={  # what the form leaves in the browser, beside the cookie
            "origins": [
                {"origin": url, "localStorage": [{"name": "turnwire.session", "value": "true"}]}
            ]
        },
    )
    context.set_default_timeout(WITHIN_MS)
    watched = Watched(url)
    context.on("page", watched.watch)
    try:
        answer = await context.request.post(
            f"{url}/ui/login", data={"key": key}, headers={"Origin": url}
        )
        assert answer.ok, await answer.text()
        page = await context.new_page()
        await page.goto(f"{url}/ui/")
        yield page
    finally:
        await context.close()
    watched.verify()


async def violations(page: Page, rules: Sequence[str] = ()) -> list[str]:
    """What axe finds on a page, of any weight.

    Args:
        rules: To look for; all of them where none is named.
    """
    await page.evaluate(f"window.axe || (() => {{ {AXE} }})()")
    found = await page.evaluate(
        "rules => axe.run(document, {resultTypes: ['violations'], "
        "...(rules.length ? {runOnly: rules} : {})})",
        list(rules),
    )
    return [
        f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}"
        for one in found["violations"]
    ]


class Chat:
    """The chat page as somebody uses it; waits are the browser's own."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.composer = page.get_by_label("Message", exact=True)
        self.questions = page.locator(".message.user")
        self.answers = page.locator(".message.assistant")
        self.prose = page.locator(".message.assistant .prose")
        self.states = page.locator(".message.assistant .state")
        self.notice = page.locator("#notice")
        self.list = page.locator("#conversations li")

    async def send(self, text: str) -> None:
        """Write a message and press Enter."""
        await self.composer.fill(text)
        await self.composer.press("Enter")

    async def see(self, text: str) -> None:
        """See the newest answer say this, blanks at its ends aside."""
        await expect(self.prose.last).to_have_text(text.strip(), timeout=WITHIN_MS)

    async def see_state(self, word: str) -> None:
        """See the newest answer in this state."""
        await expect(self.states.last).to_have_text(word, timeout=WITHIN_MS)

    async def see_end_of(self, message_id: UUID) -> None:
        """See that this answer has ended, with all its text."""
        answer = self.page.locator(f'.message.assistant[data-id="{message_id}"]')
        await expect(answer.locator(".state")).to_have_attribute("data-state", ENDED)
        await expect(answer).not_to_have_attribute("aria-busy", "true")

    async def is_quiet(self) -> None:
        """See that nothing is waited for: no open answer, no notice."""
        await expect(self.page.locator("[aria-busy]")).to_have_count(0, timeout=WITHIN_MS)
        await expect(self.page.locator(OPEN_STATE)).to_have_count(0, timeout=WITHIN_MS)
        await expect(self.notice).to_have_text("", timeout=WITHIN_MS)

    async def act(self, name: str, *, on: Locator | None = None) -> None:
        """Press a button under the newest answer, or under what is named."""
        target = on if on is not None else self.answers.last
        await target.hover()
        await target.get_by_role("button", name=name, exact=True).click()

    async def copied(self, message: Locator) -> str:
        """A message's text as its copy button gives it, byte by byte."""
        return await self.clipboard_after(lambda: self.act("Copy", on=message))

    async def clipboard_after(self, press: Callable[[], Awaitable[None]]) -> str:
        """What lies on the clipboard once a button that copies was pressed."""
        await self.page.evaluate("text => navigator.clipboard.writeText(text)", NOT_COPIED)
        await press()
        # The button says "Copied" for a moment only, which a busy machine may sleep through.
        read = "async before => { const now = await navigator.clipboard.readText();"
        await self.page.wait_for_function(
            read + " return now !== before; }", arg=NOT_COPIED, timeout=WITHIN_MS
        )
        text: str = await self.page.evaluate("navigator.clipboard.readText()")
        return text

    @property
    def conversation(self) -> str:
        """The id in the address."""
        return self.page.url.partition("#")[2]


@dataclass
class Visitor:
    """Somebody with a key and a page; their questions bear a mark, so that answers are scripted."""

    house: House
    browser: Browser
    key: ApiKey
    page: Page
    chat: Chat
    mark: str

    @property
    def url(self) -> str:
        """Address of the gateway."""
        return self.house.gateway_url()

    @property
    def context(self) -> BrowserContext:
        """The browser's profile: another page of it is another tab."""
        return self.page.context

    def script(self, about: str, **rule: object) -> str:
        """Script the answer to a question of ours; returns the question."""
        text = f"{about} ({self.mark})"
        self.house.provider.script(Rule(match=text, **rule))  # type: ignore[arg-type]
        return text

    def calls(self, text: str) -> Sequence[RecordedRequest]:
        """What the provider was asked with this as the last user message."""
        return [one for one in self.house.provider.requests if one.last_user_message == text]

    async def called(self, text: str, times: int = 1) -> None:
        """Wait until the provider was asked so often."""

        async def is_called() -> bool:
            return len(self.calls(text)) >= times

        await until(is_called)

    async def stored(self, role: str = "assistant") -> list[str]:
        """The texts of all messages of our tenant, in their order, as the database has them."""
        rows = await self.house.rows(
            "select text from ingestion.messages where tenant_id = %s and role = %s order by seq",
            self.key.tenant_id,
            role,
        )
        return [row["text"] for row in rows]

    async def ended(self, number: int = 1) -> None:
        """Wait until so many turns of ours have ended and none is open."""

        async def have_ended() -> bool:
            (row,) = await self.house.rows(
                "select count(*) filter (where ended_at is not null) ended, count(*) n "
                "from ingestion.turns where tenant_id = %s",
                self.key.tenant_id,
            )
            return bool(row["ended"] == row["n"] == number)

        await until(have_ended)

    @contextlib.asynccontextmanager
    async def tab(self) -> AsyncIterator[Chat]:
        """A second tab at the same address."""
        page = await self.context.new_page()
        await page.goto(self.page.url)
        try:
            yield Chat(page)
        finally:
            await page.close()


@contextlib.asynccontextmanager
async def visiting(
    house: House, browser: Browser, *, width: int = 1280, dark: bool = False
) -> AsyncIterator[Visitor]:
    """A visitor of a tenant of their own."""
    mark = uuid4().hex[:8]
    key = await house.make_key(f"page-{mark}")
    url = house.gateway_url()
    async with opened(browser, url, key.key, width=width, dark=dark) as page:
        yield Visitor(house, browser, key, page, Chat(page), mark)
