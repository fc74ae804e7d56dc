"""The words of a deleted message come back nowhere: not to its owner, nor in what holds them."""

from functools import partial
from uuid import UUID, uuid4

import pytest

from libs.ids import message_id
from tests.rig.client import Client
from tests.rig.house import House
from tests.rig.provider import Rule
from tests.rig.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]

TENANT = "forgetting"
FLAG_KNOWN_WITHIN_S = 30.0
"""The copy of all flags is read anew every five seconds; the rest is for a busy machine."""

SCRIPTS = {
    "latin": "remember-the-harbour-{}",
    "cyrillic": "помни-гавань-{}",
    "chinese": "请记住港口的灯光一盏一盏亮起来{}",
    "emoji": "⚓️🚢🏝️⚓️🚢🏝️⚓️🚢🏝️{}",
    "quoted": 'a-"quoted"\\back\\slash-{}',
}
"""Words that are written differently in JSON, in UTF-8 and in hexadecimal digits."""


async def keep_all_payloads(house: House, client: Client, conversation: UUID) -> int:
    """Flag a conversation and talk until payloads of it are kept; how many are by then."""
    admin = await house.make_key(TENANT, scopes=["admin", "chat", "read"])
    reply = await client.request(
        "PUT",
        f"/v1/conversations/{conversation}/capture",
        json={"enabled": True},
        headers={"Authorization": f"Bearer {admin.key}"},
    )
    assert reply.status == 200, reply.body

    async def one_is_kept() -> bool:
        await client.say(conversation, f"Before {uuid4().hex}")
        await house.come_to_rest()
        return await captures(house, conversation) > 0

    await until(one_is_kept, within_s=FLAG_KNOWN_WITHIN_S)
    post = await client.say(conversation, f"Before {uuid4().hex}")
    await until(partial(is_kept, house, post.turn_id))
    return await captures(house, conversation)


async def is_kept(house: House, turn: UUID | None) -> bool:
    """Whether the payload of a turn is kept; those of earlier turns were decided before it."""
    return bool(await house.rows("select from context_assembly.captures where turn_id = %s", turn))


async def captures(house: House, conversation: UUID) -> int:
    """How many payloads of a conversation are kept."""
    (row,) = await house.rows(
        "select count(*) as n from context_assembly.captures where conversation_id = %s",
        conversation,
    )
    found: int = row["n"]
    return found


@pytest.mark.parametrize("script", SCRIPTS)
async def test_the_words_of_a_deleted_message_come_back_nowhere(house: House, script: str) -> None:
    began = await house.moment()
    client = await house.client(TENANT)
    conversation = await client.conversation()
    kept_before = await keep_all_payloads(house, client, conversation)
    secret = SCRIPTS[script].format(uuid4().hex[:12])
    deleted = await client.say(conversation, f"{secret} {secret}")
    after = await client.say(conversation, f"Afterwards {uuid4().hex}")
    assert deleted.turn_id
    await until(partial(is_kept, house, after.turn_id))
    assert await captures(house, conversation) == kept_before + 2

    question = message_id(deleted.turn_id, "user")
    act = await client.delete_message(conversation, question)

    async def those_with_it_are_gone() -> bool:
        return await captures(house, conversation) == kept_before

    await until(those_with_it_are_gone)
    await client.say(conversation, f"And then {uuid4().hex}")
    verdict = await house.verdict(since=began)
    verdict.require(deleted_is_gone=60, superseded_excluded=4)
    assert secret in (client.ledger.canary_of_message(question) or "")
    assert act.looks >= 60
    assert act.shown_after == []


async def test_the_words_of_a_deleted_answer_come_back_nowhere(house: House) -> None:
    began = await house.moment()
    client = await house.client(TENANT)
    conversation = await client.conversation()
    secret = f"answered-{uuid4().hex}"
    house.provider.script(Rule(match=secret[-8:], deltas=(secret[:9], secret[9:])))
    post = await client.say(conversation, f"{secret[-8:]} please")
    assert post.turn_id
    assert post.stream
    assert secret in post.stream.text

    act = await client.delete_message(conversation, message_id(post.turn_id, "assistant"))

    await client.say(conversation, f"And then {uuid4().hex}")
    (await house.verdict(since=began)).require(deleted_is_gone=30)
    assert act.shown_after == []
    assert secret in (client.ledger.canary_of_message(act.target) or "")
