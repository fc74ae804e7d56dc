"""Scenes of the plan inspector for the pictures in the documents; each shows one turn.

``python -m tests.browser.scenes_inspector FOLDER`` takes them without those of the other pages.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from playwright.async_api import Page, async_playwright, expect

from services.frontend_gateway.core.timeline import AttemptView, StepView
from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.ports import InstructionView
from tests.browser.opening import ARGUMENTS, CHROMIUM, opened
from tests.browser.planted import MODEL, POLICY, WORKSPACE, Wanted, named, plant
from tests.rig.gateway import GatewayRig, gateway_rig

WIDTHS = (1_280, 390)

PICTURE_MS = 60_000
"""Longest wait for one picture; a busy machine draws slowly."""


@dataclass(frozen=True)
class Scene:
    """One picture: what is in the store, and what is done on the page before it is taken.

    Attributes:
        name: The picture's, without theme and width.
        plant: Puts the turn into the store and returns it.
        act: Brings the page to where the picture is taken.
        heights: Of the viewport, wide and narrow, in pixels.
    """

    name: str
    plant: Callable[[GatewayRig], TurnView]
    act: Callable[[Page], Awaitable[None]]
    heights: tuple[int, int] = (1_106, 1_700)

    @staticmethod
    def path(turn: TurnView) -> str:
        """Where the turn is looked at."""
        return f"/ui/turns/{turn.id}"


SETTINGS = {"system_policy_text": POLICY, "system_policy_version": "1"}
"""Of the gateway, so that the operator's text of the planted plans is known."""


def answered(rig: GatewayRig) -> TurnView:
    """A turn in a long conversation, answered at once, with most of its history left out."""
    _instruct(rig)
    return plant(rig, Wanted("answered"), now=_now())


def recovered(rig: GatewayRig) -> TurnView:
    """A turn whose first worker was lost and whose answer was cut off in the second attempt."""
    _instruct(rig)
    wanted = Wanted(
        "recovered", exchanges=5, status="partial", reason="provider_cut",
        answer="Here is the plan for Saturday: leave at 6:50,",
    )  # fmt: skip
    turn = plant(rig, wanted, now=_now())
    at = turn.created_at
    assert at is not None
    assert turn.usage is not None
    ended = replace(turn, ended_at=at + timedelta(milliseconds=13_420))
    rig.store.turn_rows[turn.id] = ended
    (step,) = rig.store.step_rows[turn.id]
    rig.store.attempt_rows[turn.id] = [
        AttemptView(step.step_id, 1, MODEL, "repeated", "lease_expired",
                    ended_at=at + timedelta(milliseconds=9_100)),
        AttemptView(step.step_id, 2, MODEL, "interrupted", "provider_cut", requests=2,
                    failure="connection.reset", first_token_ms=840, duration_ms=4_210,
                    began_at=at + timedelta(milliseconds=9_180),
                    ended_at=at + timedelta(milliseconds=13_390),
                    input_tokens=turn.usage.input, output_tokens=turn.usage.output),
    ]  # fmt: skip
    return ended


def refused(rig: GatewayRig) -> TurnView:
    """A turn whose message alone is larger than the model's window."""
    wanted = Wanted(
        "refused", exchanges=3, status="failed", reason="context_too_large", has_plan=False
    )
    turn = plant(rig, wanted, now=_now())
    at = turn.created_at
    assert at is not None
    step = StepView(named(turn.id, "step"), 1, "refused", "context_too_large", None, MODEL,
                    at + timedelta(milliseconds=29))  # fmt: skip
    rig.store.step_rows[turn.id] = [step]
    ended = replace(turn, ended_at=at + timedelta(milliseconds=58))
    rig.store.turn_rows[turn.id] = ended
    return ended


def _instruct(rig: GatewayRig) -> None:
    tenant = rig.caller.tenant_id
    rows = rig.store.instruction_rows
    if not any(row.version == 3 and row.scope_id == tenant for row in rows):
        rows.append(InstructionView(tenant, "workspace", 3, WORKSPACE, _now()))


def _now() -> datetime:
    return datetime.now(UTC)


async def read(page: Page) -> None:
    """Wait until the page has everything."""
    await expect(page.locator("#blocks .row.out").first).to_be_attached()
    await expect(page.locator("#blocks .c-text", has_text="plan trips").first).to_be_attached()
    await expect(page.locator("#sentence")).to_contain_text(" of ")


async def read_beside(page: Page) -> None:
    """Open the text of an answer."""
    await read(page)
    await page.locator("#blocks-title").evaluate("node => node.scrollIntoView()")
    await page.locator("#blocks .row[data-trust=model]:not(.out) .opener").first.click()
    await expect(page.locator("#detail .text")).to_be_visible()
    await expect(page.locator("#blocks .row .c-text:empty")).to_have_count(0)
    await page.mouse.move(0, 0)


async def compare(page: Page) -> None:
    """Ask what changed."""
    await page.get_by_role("button", name="Compare with the previous turn").click()
    await expect(page.locator(".verdict")).to_be_visible()


async def read_short(page: Page) -> None:
    """Wait for a page without left out rows."""
    await expect(page.locator("#sentence")).to_be_visible()
    await page.wait_for_load_state("networkidle")


SCENES = (
    Scene("inspector", answered, read),
    Scene("inspector-text", answered, read_beside, heights=(700, 844)),
    Scene("inspector-partial", recovered, read_short, heights=(1_000, 1_100)),
    Scene("inspector-failed", refused, read_short, heights=(620, 720)),
)


async def take(folder: Path) -> list[Path]:
    """Take every picture, light and dark, wide and narrow; returns where they are."""
    taken: list[Path] = []
    async with gateway_rig(**SETTINGS) as rig, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for scene in SCENES:
            turn = scene.plant(rig)
            for dark in (False, True):
                for width, height in zip(WIDTHS, scene.heights, strict=True):
                    async with opened(
                        browser, rig.url, rig.key, width=width, height=height, dark=dark
                    ) as page:
                        await page.goto(f"{rig.url}{scene.path(turn)}")
                        await scene.act(page)
                        size = "wide" if width == WIDTHS[0] else "narrow"
                        theme = "dark" if dark else "light"
                        path = folder / f"{scene.name}-{theme}-{size}.png"
                        await page.screenshot(
                            path=path, animations="disabled", caret="hide", timeout=PICTURE_MS
                        )
                        taken.append(path)
        await browser.close()
    return taken


if __name__ == "__main__":
    for picture in asyncio.run(take(Path(sys.argv[1]))):
        print(picture)  # noqa: T201 -- a command
