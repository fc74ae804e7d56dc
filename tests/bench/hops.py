"""Where the time of one turn goes, from the clock times in its rows: all parts share one clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, time

from tests.bench.bench_house import RECORDED, BenchHouse
from tests.bench.driver import TURNS_PER_CONVERSATION, TurnwireClient, turn_of
from tests.bench.machine import percentile
from tests.rig.provider_answers import last_user_message_of

TURNS = RECORDED - 4  # what the provider remembers


@dataclass(frozen=True, slots=True)
class Hop:
    """One leg of a turn's way and its median milliseconds."""

    name: str
    ms: float


LEGS: Sequence[tuple[str, str, str]] = (
    ("client to gateway to topic to acceptance", "sent", "accepted"),
    ("acceptance and its commit, topic, to planning", "accepted", "planned"),
    ("planning and its commit, topic, accept and claim, to provider", "planned", "asked"),
    ("provider", "asked", "answering"),
    ("first token through llm_gateway, Valkey and gateway to the client", "answering", "first"),
    ("first token to the last entry of the answer's final commit", "first", "answered"),
    ("final commit, topic, to the turn's end", "answered", "ended"),
    ("the end's commit, Valkey, gateway, to `done` at the client", "ended", "done"),
)


async def measure_hops(house: BenchHouse, client: TurnwireClient) -> list[Hop]:
    """Turns one after the other, then their rows and the provider's record."""
    await house.provider.control("POST", "/reset")
    clock_offset_s = time() - perf_counter()
    moments: dict[str, dict[str, float]] = {}
    turns = {}
    for n in range(TURNS):
        if n % TURNS_PER_CONVERSATION == 0:
            conversation = await client.conversation()
        text = f"Profiled question {n}"
        answer = await client.turn(conversation, text)
        moments[text] = {
            "sent": answer.sent_at + clock_offset_s,
            "first": answer.first_at + clock_offset_s,
            "done": answer.ended_at + clock_offset_s,
        }
        turns[text] = turn_of(answer)
    record = await house.provider.control("GET", "/requests")
    for request in record["requests"]:
        text = last_user_message_of(request["body"].encode())
        if text in moments:
            moments[text] |= {
                "asked": request["received_at"],
                "answering": request["first_delta_at"],
            }
    for text, turn_id in turns.items():
        rows = await house.turn_moments(turn_id)
        moments[text] |= {name: at.timestamp() for name, at in rows.items()}
    return [
        Hop(name, percentile([(m[end] - m[start]) * 1000 for m in moments.values()], 50))
        for name, start, end in LEGS
    ]
