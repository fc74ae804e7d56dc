"""What the length of a conversation costs its next turn."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID, uuid4

import orjson
import psycopg
from psycopg.types.json import Jsonb

from libs import tokens
from libs.ids import message_id
from tests.bench.arithmetic import Delays
from tests.bench.bench_house import BenchHouse
from tests.bench.driver import TurnwireClient, turn_of

HISTORY_TOKENS = 40
CONVERSATIONS = 6
"""Of each length; asked in turns, so each grows by two messages with every sixth question."""
ROLES: Sequence[Literal["user", "assistant"]] = ("user", "assistant")

# A conversation of thousands of messages takes minutes to have. Its first turn is real, the others
# are copies of its rows with ids, numbers and keys of their own, whatever columns there are but for
# those that Postgres fills in itself.
COLUMNS = """
select string_agg(quote_ident(column_name), ', ' order by ordinal_position)
  from information_schema.columns
 where table_schema = 'ingestion' and table_name = %s and is_generated = 'NEVER'
"""
COPY_TURN = """
insert into ingestion.turns ({columns})
select {columns} from (
  select (jsonb_populate_record(t, %(changes)s)).* from ingestion.turns t where t.id = %(turn)s) c
"""
COPY_MESSAGE = """
insert into ingestion.messages ({columns}) overriding system value
select {columns} from (
  select (jsonb_populate_record(m, %(changes)s || jsonb_build_object('observed_no',
          nextval(pg_get_serial_sequence('ingestion.messages', 'observed_no'))))).*
    from ingestion.messages m where m.id = %(message)s) c
"""
COPY_TOKENS = """
insert into ingestion.message_tokens ({columns})
select {columns} from (
  select (jsonb_populate_record(t, %(changes)s)).*
    from ingestion.message_tokens t where t.message_id = %(message)s) c
"""
GROW = """
with branch as (
  update ingestion.branches set last_turn_id = %(last)s where conversation_id = %(conversation)s)
update ingestion.conversations set next_seq = %(next_seq)s, last_turn_id = %(last)s
 where id = %(conversation)s
"""


@dataclass(frozen=True, slots=True)
class LengthResult:
    """First tokens by the number of messages that were there before.

    Attributes:
        sent: Messages that the model was sent: those that fit into the window, the question too.
    """

    first: dict[int, Delays]
    sent: dict[int, int]

    def growth(self, longer: int, shorter: int) -> float:
        """Median at one length over the median at another; 0 where one was not measured."""
        if longer not in self.first or shorter not in self.first:
            return 0.0
        return self.first[longer].p(50) / self.first[shorter].p(50)


async def measure_lengths(
    house: BenchHouse, client: TurnwireClient, *, lengths: Sequence[int], samples: int
) -> LengthResult:
    """Ask at all lengths in turns, in shuffled order, so that all see the same machine."""
    text = text_of(HISTORY_TOKENS)
    await house.provider.control("POST", "/script", {"default": {"deltas": [text]}})
    first = {length: Delays() for length in lengths}
    sent: dict[int, int] = {}
    dice = random.Random(1)
    try:
        made = {
            length: [await _long(house, client, length, text) for _ in range(CONVERSATIONS)]
            for length in lengths
        }
        for length, conversations in made.items():
            await client.turn(conversations[0], text, expected=text)
            sent[length] = await _messages_sent(house)
        for n in range(samples):
            for length in dice.sample(list(lengths), len(lengths)):
                conversation = made[length][n % CONVERSATIONS]
                answer = await client.turn(conversation, text, expected=text)
                first[length].note(answer.first_at - answer.sent_at)
    finally:
        await house.provider.control("POST", "/script", {"default": {}})
    return LengthResult(first, sent)


async def _messages_sent(house: BenchHouse) -> int:
    """How many messages stood in the newest request that the provider got."""
    known = await house.provider.control("GET", "/stats")
    newest = await house.provider.control("GET", f"/requests?after={known['requests'] - 2}")
    return len(orjson.loads(newest["requests"][-1]["body"])["messages"])


async def _long(house: BenchHouse, client: TurnwireClient, messages: int, text: str) -> UUID:
    conversation = await client.conversation()
    answer = await client.turn(conversation, text, expected=text)
    await copy_turns(house.stack.database_url, conversation, turn_of(answer), messages // 2)
    return conversation


async def copy_turns(database_url: str, conversation: UUID, turn: UUID, wanted: int) -> None:
    """Give a conversation of one ended turn as many turns as are wanted."""
    turns, messages, counts = [], [], []
    last = turn
    for number in range(1, wanted):
        last, seq = uuid4(), 2 * number + 1
        ids = [message_id(last, role) for role in ROLES]
        changes = {
            "id": str(last),
            "key": uuid4().hex,
            "request_id": str(uuid4()),
            "seq": seq,
            "user_message_id": str(ids[0]),
            "assistant_message_id": str(ids[1]),
        }
        turns.append({"turn": turn, "changes": Jsonb(changes)})
        for place, role in enumerate(ROLES):
            own = {"id": str(ids[place]), "turn_id": str(last), "seq": seq + place}
            copied = message_id(turn, role)
            messages.append({"message": copied, "changes": Jsonb(own)})
            counted = {"message_id": own["id"]}
            counts.append({"message": copied, "changes": Jsonb(counted)})
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        cursor = connection.cursor()
        for table, statement, rows in (
            ("turns", COPY_TURN, turns),
            ("messages", COPY_MESSAGE, messages),
            ("message_tokens", COPY_TOKENS, counts),
        ):
            await cursor.execute(COLUMNS, (table,))
            found = await cursor.fetchone()
            assert found is not None
            await cursor.executemany(statement.format(columns=found[0]), rows)
        values = {"next_seq": 2 * wanted + 1, "last": last, "conversation": conversation}
        await cursor.execute(GROW, values)


def text_of(wanted: int) -> str:
    """A text of so many tokens in the scripted model's encoding."""
    words = ("the", "ferry", "leaves", "at", "noon", "and", "comes", "back", "when", "calm")
    text = words[0]
    n = 1
    while tokens.count(text, "o200k_base") < wanted:
        text = f"{text} {words[n % len(words)]}"
        n += 1
    return text
