"""Scenes of the operator's view for the pictures in the documents: the wall, a story, an act.

``python -m tests.browser.scenes_ops FOLDER`` takes them without those of the other pages.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from playwright.async_api import Browser, Page, async_playwright, expect

from tests.browser.opening import ARGUMENTS, CHROMIUM, opened
from tests.rig.gateway import GatewayRig, gateway_rig
from tests.rig.told_turns import plant

WIDTHS = (1_440, 390)


@dataclass(frozen=True)
class Scene:
    """One picture.

    Attributes:
        name: The picture's, without theme and width.
        place: The address behind ``/ui/ops#``, with the names of planted ids.
        act: Brings the page to where the picture is taken.
        heights: Of the viewport, wide and narrow, in pixels.
    """

    name: str
    place: str
    act: Callable[[Page], Awaitable[None]]
    heights: tuple[int, int] = (900, 1_500)


async def see_the_wall(page: Page) -> None:
    """Everything in figures."""
    await expect(page.get_by_role("heading", level=2).first).to_have_text("Services")


async def see_a_story(page: Page) -> None:
    """A turn that failed, read to its end."""
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Failed")


async def try_an_act(page: Page) -> None:
    """What would happen, before it happens."""
    await page.get_by_role("button", name="End it with what was shown").click()
    await expect(page.locator(".act")).to_contain_text("keeps what was shown")


async def see_a_list(page: Page) -> None:
    """A list behind a figure."""
    await expect(page.get_by_role("table").first).to_be_visible()


async def see_a_letter(page: Page) -> None:
    """A dead letter, without its bytes."""
    await expect(page.get_by_role("heading", level=1)).to_contain_text("set aside a record")


async def see_a_state(page: Page) -> None:
    """What is said where there is nothing to show."""
    await expect(page.locator(".state")).to_be_visible()


SCENES = (
    Scene("ops", "/", see_the_wall),
    Scene("ops-turn", "/turn/{failed}", see_a_story, (900, 1_400)),
    Scene("ops-act", "/turn/{running}", try_an_act, (900, 1_300)),
    Scene("ops-dead-letter", "/dead-letter/{letter}", see_a_letter, (700, 900)),
    Scene("ops-leases", "/leases", see_a_list, (700, 900)),
    Scene("ops-turns", "/turns", see_a_list, (700, 900)),
    Scene("ops-missing", "/turn/00000000-0000-0000-0000-000000000000", see_a_state, (500, 700)),
)
PICTURED = ("ops", "ops-turn")
"""Those that the documents show; the others are for looking at."""


async def take(
    browser: Browser, rig: GatewayRig, ids: Mapping[str, UUID], scene: Scene, folder: Path
) -> None:
    """Both themes, wide and narrow."""
    key, _ = rig.new_key(["admin"])
    for n, width in enumerate(WIDTHS):
        for theme in ("light", "dark"):
            async with opened(
                browser, rig.url, key, width=width, height=scene.heights[n], dark=theme == "dark"
            ) as page:
                place = scene.place.format(**ids)
                await page.goto(f"{rig.url}/ui/ops#{place}")
                await scene.act(page)
                size = "wide" if n == 0 else "narrow"
                await page.screenshot(path=folder / f"{scene.name}-{theme}-{size}.png")


async def take_all(browser: Browser, folder: Path, names: tuple[str, ...] = ()) -> None:
    """Pictures of every scene, or of those that are named."""
    async with gateway_rig() as rig:
        ids = plant(rig.operators)
        for scene in SCENES:
            if not names or scene.name in names:
                await take(browser, rig, ids, scene, folder)


async def main(folder: Path, names: tuple[str, ...]) -> None:
    """Take the pictures into a folder."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            await take_all(browser, folder, names)
        finally:
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), tuple(sys.argv[2:])))
