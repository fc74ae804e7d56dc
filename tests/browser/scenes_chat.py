"""Scenes of the chat page for the pictures in the documents; the answers are written here."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from playwright.async_api import Page, async_playwright, expect

from schemas.usage import Usage
from services.frontend_gateway.core.turns import TurnView
from tests.browser.asking import streamed
from tests.browser.opening import ARGUMENTS, CHROMIUM, Chat, opened
from tests.rig.gateway import GatewayRig, gateway_rig

SIZES = {"wide": (1_280, 964), "narrow": (390, 780)}
TITLES = {
    211: "Wedding seating, second try",
    50: "Why does the boiler knock at night",
    26: "Packing list for the north",
    3: "Rewrite the notice about the lift",
    0.1: "The ferry, and what a car costs",
}
"""By their age in hours."""

QUESTION = "How long does the ferry take, and what does it cost with a car?"
ANSWER = """The crossing takes **forty minutes**; in winter the last boat leaves earlier. Prices
from the [timetable](https://harbour.example/timetable):

| Ticket | Summer | Winter |
|:--|--:|--:|
| On foot | 8.40 | 6.20 |
| With a bicycle | 11.00 | 8.00 |
| With a car | 34.50 | 27.00 |

Book a car a day ahead. From a terminal:

```sh
ferry book --car --date 2026-06-12 --time 09:40
```
"""
SECOND = "And if I miss the last one?"
CUT = "Then you have two ways left. The road around the bay takes two hours and ten minutes,"
THIRD = "Which one would you take with children?"
GROWING = "With children I would take the road: there is a playground half way, and"


async def _ask(page: Page, rig: GatewayRig, text: str) -> TurnView:
    turn = replace(await streamed(Chat(page), rig, text), model="smollm2-360m")
    rig.store.turn_rows[turn.id] = turn
    return turn


async def _plant(rig: GatewayRig) -> str:
    """Conversations of the last days; the id of the newest one."""
    made = ""
    for age_h, title in TITLES.items():
        answer = await rig.client.post("/v1/conversations", json={"title": title})
        made = answer.json()["id"]
        tenant, principal, view = rig.store.conversation_rows[UUID(made)]
        view = replace(view, created_at=datetime.now(UTC) - timedelta(hours=age_h))
        rig.store.conversation_rows[UUID(made)] = (tenant, principal, view)
    return made


async def _talk(page: Page, rig: GatewayRig) -> None:
    """A conversation with an answer of every kind that one sees in a day."""
    chat = Chat(page)
    first = await _ask(page, rig, QUESTION)
    await rig.write(first, [ANSWER])
    await chat.see_state("◌ answering")
    await rig.finish(first, ANSWER, "1-2", usage=Usage(input=412, output=118))
    await chat.see_state("● answered")
    second = await _ask(page, rig, SECOND)
    await rig.write(second, [CUT])
    await chat.see_state("◌ answering")
    cut = Usage(input=548, output=21)
    await rig.finish(second, CUT, "1-2", status="partial", reason="provider_cut", usage=cut)
    await chat.see_state("◐ stopped early")
    third = await _ask(page, rig, THIRD)
    await rig.write(third, [GROWING])
    await chat.see_state("◌ answering")
    await page.mouse.move(0, 0)


async def take(folder: Path) -> list[Path]:
    """Take every picture, light and dark, wide and narrow; returns where they are."""
    taken: list[Path] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for size, (width, height) in SIZES.items():
            for dark in (False, True):
                async with (
                    gateway_rig() as rig,
                    opened(
                        browser, rig.url, rig.key, width=width, height=height, dark=dark
                    ) as page,
                ):
                    name = f"{'dark' if dark else 'light'}-{size}.png"
                    newest = await _plant(rig)
                    await page.reload()
                    await expect(page.get_by_label("Message", exact=True)).to_be_focused()
                    if size == "wide":
                        await expect(page.locator("#conversations li")).to_have_count(len(TITLES))
                    taken.append(await _shoot(page, folder / f"chat-empty-{name}"))
                    await page.goto(f"{rig.url}/ui/#{newest}")
                    await expect(page.locator(".empty")).to_contain_text("Nothing was said")
                    await _talk(page, rig)
                    taken.append(await _shoot(page, folder / f"chat-{name}"))
        await browser.close()
    return taken


async def _shoot(page: Page, path: Path) -> Path:
    await page.screenshot(path=path, animations="disabled", caret="hide")
    return path
