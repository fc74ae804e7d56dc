"""The plan inspector against the real house: what happened to turns that ended in every way."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.browser.opening import WITHIN_MS, Visitor
from tests.rig.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

FOR_EVER = ("and ", "so ", "on ")
SILENCE_MS = 400
"""What the provider says nothing for, before its first token."""

MANY = 10_000
"""Messages of a long conversation."""

PRESS = """name => {
  const button = [...document.querySelectorAll('button')].find(one => one.textContent === name);
  if (!document.querySelector('.result')?.textContent.includes('Asking…')) button?.click();
}"""
"""Presses a button where it stands and no answer is awaited, in one step: pages are redrawn."""


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(visitor: Visitor) -> AsyncIterator[Visitor]:
    """A visitor whose provider is left as it was found."""
    yield visitor
    visitor.house.provider.release()


async def newest(visitor: Visitor) -> str:
    """The id of the visitor's newest turn."""
    rows = await visitor.house.rows(
        "select id from ingestion.turns where tenant_id = %s order by seq desc limit 1",
        visitor.key.tenant_id,
    )
    return str(rows[0]["id"])


async def asked(visitor: Visitor, text: str, *, turns: int = 1) -> str:
    """Ask on the chat page and wait until the turn is there; returns its id."""
    await visitor.chat.send(text)

    async def is_there() -> bool:
        rows = await visitor.house.rows(
            "select id from ingestion.turns where tenant_id = %s", visitor.key.tenant_id
        )
        return len(rows) == turns

    await until(is_there)
    return await newest(visitor)


async def inspect(visitor: Visitor, turn: str) -> Page:
    """Go to the turn's page."""
    await visitor.page.goto(f"{visitor.url}/ui/turns/{turn}")
    return visitor.page


async def see(page: Page, words: str) -> None:
    """See the one sentence say this."""
    await expect(page.locator("#sentence")).to_have_text(re.compile(words), timeout=WITHIN_MS)


async def hops(page: Page) -> list[str]:
    """The names in the table of hops."""
    return await page.locator(".hops tbody th").all_inner_texts()


async def test_the_word_plan_under_an_answer_leads_to_its_whole_story(visitor: Visitor) -> None:
    chat, page = visitor.chat, visitor.page
    question = visitor.script(
        "when?", deltas=("At ", "9:40."), first_delay_ms=SILENCE_MS, delay_ms=40
    )
    turn = await asked(visitor, question)
    await chat.see("At 9:40.")
    await chat.is_quiet()  # the end draws the row of the link once more
    await visitor.page.get_by_role("link", name="plan").click()
    await page.wait_for_url(f"**/ui/turns/{turn}")

    await see(page, r"^Answered in [\d.]+ m?s with 1 of 1 message, \d+ of [\d,]+ tokens\.$")
    assert await hops(page) == [
        "Accepted", "Started", "Planned", "Model called", "First token", "Last token", "Committed",
    ]  # fmt: skip
    await expect(page.locator(".meta .badge")).to_have_text("● answered")
    await expect(page.locator(".meta")).to_contain_text("1 attempt")
    took = await page.locator(".hops tbody td.number:last-child").all_inner_texts()
    spans = [float(one.replace(",", "")) for one in took if one]
    (row,) = await visitor.house.rows(
        "select extract(epoch from ended_at - created_at) * 1000 as ms from ingestion.turns "
        "where id = %s",
        turn,
    )
    assert abs(sum(spans) - float(row["ms"])) < 0.02 * float(row["ms"]) + 5
    assert spans[3] >= 0.99 * SILENCE_MS  # any other may be longer: machines stand still
    await is_to_scale(page, spans)
    await expect(page.locator("#blocks .rows .row")).to_have_count(1)
    await page.get_by_role("link", name="Conversation").click()
    await chat.see("At 9:40.")


async def is_to_scale(page: Page, spans: Sequence[float]) -> None:
    """See the bar of the timeline divided as these times are."""
    widths = await page.evaluate(
        "[...document.querySelectorAll('.times .piece')].map(n => n.getBoundingClientRect().width)"
    )
    for width, span in zip(widths, spans, strict=True):
        assert abs(width / sum(widths) - span / sum(spans)) < 0.03


async def test_a_row_opens_its_text_beside_and_says_if_it_was_changed_since(
    visitor: Visitor,
) -> None:
    question = visitor.script("<b onclick=alert(1)>where?</b>", deltas=("There.",))
    turn = await asked(visitor, question)
    await visitor.ended(1)
    page = await inspect(visitor, turn)
    await see(page, "with 1 of 1 message")  # what was left out is known: rows stay as they are
    opener = page.locator("#blocks .opener", has_text="message to answer")
    await opener.click()
    detail = page.locator("#detail")
    await expect(detail.locator(".text")).to_have_text(question)
    await expect(detail).to_contain_text("The text is the one that was sent.")
    assert await page.locator("#detail b").count() == 0
    left, right = await page.locator("main").bounding_box(), await detail.bounding_box()
    assert left is not None
    assert right is not None
    assert left["x"] + left["width"] <= right["x"] + 1
    await page.keyboard.press("Escape")
    await expect(detail).to_be_hidden()
    await expect(opener).to_be_focused()

    await visitor.house.rows(
        "update ingestion.messages set text = 'changed' where tenant_id = %s and role = 'user' "
        "returning id",
        visitor.key.tenant_id,
    )
    await page.get_by_role("button", name="Replay").click()
    await expect(page.locator(".verdict")).to_have_text("! Not equal")
    await expect(page.locator(".result")).to_contain_text("text changed")
    await page.locator(".result .ids button").click()
    await expect(page.locator("#detail .body")).to_contain_text("was changed since it was sent")


async def test_a_second_turn_is_compared_explained_replayed_and_copied(visitor: Visitor) -> None:
    await asked(visitor, visitor.script("first", deltas=("The pier is in the north.",)))
    await visitor.ended(1)
    await visitor.chat.see("The pier is in the north.")
    turn = await asked(visitor, visitor.script("second", deltas=("Yes.",)), turns=2)
    await visitor.ended(2)
    page = await inspect(visitor, turn)
    await see(page, "with 3 of 3 messages")

    await page.get_by_role("button", name="Compare with the previous turn").click()
    await expect(page.locator(".verdict")).to_have_text("✓ Two new")
    await expect(page.locator(".result")).to_contain_text("answer 2")
    await expect(page.locator(".mark-word")).to_have_count(2)

    field = page.get_by_label("Was it shown?")
    await field.fill("pier is in")
    await field.press("Enter")
    await expect(page.locator(".verdict")).to_have_text("✓ Present")
    await page.get_by_role("button", name="Show the block").click()
    await expect(page.locator("#detail .text")).to_have_text("The pier is in the north.")
    await field.fill("submarine")
    await page.get_by_role("button", name="Explain").click()
    await expect(page.locator(".verdict")).to_have_text("! Absent")
    await expect(page.locator(".result")).to_contain_text("nobody said it")

    await page.get_by_role("button", name="Replay").click()
    await expect(page.locator(".verdict")).to_have_text("✓ Equal")

    button = page.get_by_role("button", name="Copy as JSON")
    copied = json.loads(await visitor.chat.clipboard_after(button.click))
    assert copied["turn"]["id"] == copied["timeline"]["turn_id"] == turn
    assert copied["plan"]["steps"][0]["plan"]["count"] == 3
    assert "pier is in" not in json.dumps(copied)


async def test_a_failed_turn_says_why_what_helps_and_what_the_provider_answered(
    visitor: Visitor,
) -> None:
    turn = await asked(visitor, visitor.script("down?", status=500))
    await visitor.ended(1)
    page = await inspect(visitor, turn)
    await see(page, "^Failed after .*: the provider could not be reached")
    await expect(page.locator(".advice")).to_contain_text("Answer again")
    await expect(page.locator(".attempts tbody td").nth(1)).to_have_text("3")
    await expect(page.locator(".attempts")).to_contain_text("provider unavailable")
    await expect(page.locator("#blocks .rows .row")).to_have_count(1)


async def test_a_turn_that_was_cut_off_says_so(visitor: Visitor) -> None:
    question = visitor.script("cut?", deltas=("One ", "two ", "three."), cut_after=2)
    turn = await asked(visitor, question)
    await visitor.ended(1)
    page = await inspect(visitor, turn)
    await see(page, "^Stopped early after .*: the provider cut the stream.")


async def test_a_running_turn_counts_on_and_turns_into_a_cancelled_one_by_itself(
    visitor: Visitor,
) -> None:
    question = visitor.script("endless?", deltas=FOR_EVER, never_ends=True, delay_ms=50)
    turn = await asked(visitor, question)
    page = await inspect(visitor, turn)
    await see(page, r"^Being answered for [\d.]+ m?s with 1 of 1 message")
    await expect(page.locator(".hops tbody th").last).to_have_text("Now")
    async with visitor.tab() as other:
        status = await other.page.evaluate(
            f"fetch('/v1/turns/{turn}/cancel', {{method: 'POST'}}).then(r => r.status)"
        )
    assert status == 202
    await see(page, "^Cancelled after .*: you stopped it.")
    await expect(page.locator(".hops tbody th").last).to_have_text("Committed")


async def test_a_queued_turn_says_how_many_are_before_it_and_gets_its_plan_by_itself(
    visitor: Visitor,
) -> None:
    hanging = visitor.script("hanging", hang_before_head=True)
    await asked(visitor, hanging)
    turn = await asked(visitor, visitor.script("patient", deltas=("At last.",)), turns=2)
    page = await inspect(visitor, turn)
    await see(page, "^Queued: 1 turn is before it.$")
    await expect(page.locator("#rest")).to_contain_text("There is no plan yet")
    assert await hops(page) == ["Accepted", "Now"]
    await visitor.called(hanging)  # a call that comes later hangs for good
    visitor.house.provider.release()
    await see(page, "^Answered in ")
    await expect(page.locator("#blocks .opener", has_text="message to answer")).to_be_visible()


async def test_a_turn_that_is_too_large_has_no_plan_and_says_what_to_do(visitor: Visitor) -> None:
    turn = await asked(visitor, "harbour " * 20_000)
    await visitor.ended(1)
    page = await inspect(visitor, turn)
    await see(page, "^Failed after .*: the message alone is larger than the model's window")
    await expect(page.locator(".advice")).to_contain_text("Shorten the message")
    assert "Refused by a rule" in await hops(page)
    await expect(page.locator("#rest h2")).to_have_text("There is no plan")


async def test_a_turn_after_ten_thousand_messages_keeps_its_page_light(visitor: Visitor) -> None:
    await asked(visitor, visitor.script("begin", deltas=("Ready.",)))
    await visitor.ended(1)
    await visitor.house.rows(PLANTED, visitor.key.tenant_id, MANY // 2)
    turn = await asked(visitor, visitor.script("and now?", deltas=("Now.",)), turns=MANY // 2 + 2)
    await visitor.ended(MANY // 2 + 2)
    page = await inspect(visitor, turn)
    await see(page, r"with \d+ of 10,003 messages")
    rows = page.locator("#blocks .rows .row")
    shown = int((await page.locator("#blocks").get_attribute("aria-rowcount")) or 0)
    assert shown > 100
    await page.locator("#blocks .rows").hover()
    for _ in range(6):
        await page.mouse.wheel(0, 3_000)
        assert await rows.count() < 80
    await expect(page.locator("#blocks .opener", has_text="message to answer")).to_be_visible()
    await page.locator("main").evaluate("node => node.scrollTo(0, 0)")
    older = page.get_by_role("button", name="Show 100 older")
    oldest = await page.locator(".row.out .opener").first.inner_text()
    for _ in range(3):
        await older.click()
        await page.wait_for_function(  # what was read stays where it was: the rest grows above it
            "() => document.querySelector('main').scrollTop > 2_000", timeout=WITHIN_MS
        )
        await page.locator("main").evaluate("node => node.scrollTo(0, 0)")
        await expect(page.locator(".row.out .opener").first).not_to_have_text(oldest)
        oldest = await page.locator(".row.out .opener").first.inner_text()
    assert await rows.count() < 80
    await page.locator(".row.out .opener").first.click()
    await expect(page.locator("#detail .text")).to_contain_text("planted")


PLANTED = """
with given as (
  select %s::uuid as tenant, %s::int as turns
), talk as (
  select t.*, g.turns from ingestion.turns t join given g on g.tenant = t.tenant_id
), made as (
  insert into ingestion.turns (tenant_id, id, conversation_id, branch_id, principal_id,
    parent_turn_id, request_id, key, fingerprint, policy, model, status, seq, queued_at_position,
    user_message_id, assistant_message_id, length, nul_removed, created_at, ended_at)
  select k.tenant_id, gen_random_uuid(), k.conversation_id, k.branch_id, k.principal_id, k.id,
         gen_random_uuid(), 'planted-' || n, '', k.policy, k.model, 'completed', 1 + 2 * n, 0,
         gen_random_uuid(), gen_random_uuid(), 9, 0, k.created_at, k.ended_at
    from talk k, generate_series(1, k.turns) n
  returning *
), said as (
  insert into ingestion.messages (tenant_id, id, conversation_id, branch_id, turn_id, role, seq,
    status, text, length, said_at, created_at)
  select m.tenant_id,
         case r.role when 'user' then m.user_message_id else m.assistant_message_id end,
         m.conversation_id, m.branch_id, m.id, r.role, m.seq + r.more, 'completed',
         'planted ' || (m.seq + r.more) || repeat(' harbour', 20), 200, m.created_at, m.created_at
    from made m cross join (values ('user', 0), ('assistant', 1)) r (role, more)
  returning id
)
update ingestion.conversations c set next_seq = 3 + 2 * g.turns,
       last_turn_id = (select id from made order by seq desc limit 1)
  from given g
 where c.tenant_id = g.tenant and (select count(*) from said) = 2 * g.turns
returning c.id
"""


# Who may see it


async def test_unknown_and_foreign_ids_and_markup_lead_to_one_plain_page(visitor: Visitor) -> None:
    turn = await asked(visitor, visitor.script("mine", deltas=("Yes.",)))
    await visitor.ended(1)
    other = await visitor.house.make_key(f"other-{visitor.mark}")
    await visitor.context.clear_cookies()
    page = await inspect(visitor, turn)
    await sign_in_there(page, other.key)
    for wrong in (turn, str(uuid4()), "%3Cimg%20src=x%20onerror=alert(1)%3E", "a/b", "x" * 500):
        answer = await page.goto(f"{visitor.url}/ui/turns/{wrong}")
        assert answer is not None
        assert answer.status == 404
        title = page.get_by_role("heading", level=1)
        await expect(title).to_have_text("There is no such turn for this key")
        assert await page.locator("img").count() == 0

    await visitor.context.clear_cookies()
    await inspect(visitor, turn)
    await sign_in_there(page, visitor.key.key)
    assert page.url.endswith(f"/ui/turns/{turn}")
    await see(page, "^Answered in ")


async def sign_in_there(page: Page, key: str) -> None:
    """Sign in where somebody without a session was led to."""
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url(re.compile("^[^?]*/ui/turns/"))


async def test_a_key_that_is_revoked_takes_the_texts_off_the_open_page(visitor: Visitor) -> None:
    question = visitor.script("secret?", deltas=("Never.",))
    turn = await asked(visitor, question)
    await visitor.ended(1)
    page = await inspect(visitor, turn)
    await see(page, "with 1 of 1 message")
    await page.locator("#blocks .opener", has_text="message to answer").click()
    await expect(page.locator("#detail .text")).to_have_text(question)
    await visitor.house.operate(
        "select frontend_gateway.op_revoke_key(%s, 'tests')", visitor.key.key_id
    )
    title = page.get_by_role("heading", name="You are signed out")

    async def is_signed_out() -> bool:
        await page.evaluate(PRESS, "Replay")
        return await title.is_visible()

    await until(is_signed_out)
    assert question not in await page.locator("body").inner_text()
    await expect(page.get_by_role("link", name="Sign in")).to_be_visible()


async def test_a_clock_that_is_wrong_by_a_day_changes_no_time_on_the_page(visitor: Visitor) -> None:
    await asked(visitor, visitor.script("first", deltas=("One.",)))
    await visitor.ended(1)
    turn = await asked(visitor, visitor.script("second", deltas=("Two.",)), turns=2)
    await visitor.ended(2)
    for hours, word in ((24, "ahead"), (-24, "behind")):
        async with visitor.tab() as other:
            page = other.page
            await page.clock.set_system_time(datetime.now(UTC) + timedelta(hours=hours))
            await page.goto(f"{visitor.url}/ui/turns/{turn}")
            await expect(page.locator("#notice")).to_contain_text(f"24 hours {word}")
            await see(page, r"^Answered in [\d.]+ m?s with 3 of 3 messages")
            said = page.locator("#blocks .c-time time").first
            await expect(said).to_have_text(re.compile("^(just now|[1-5] minutes? ago)$"))
