"""Callers are remembered for seconds, and not without a bound."""

from datetime import UTC, datetime
from uuid import UUID, uuid4

from libs.api_keys import hash_api_key
from services.frontend_gateway.http.rights import CACHED_S, MAX_CACHED, Doorkeeper
from services.frontend_gateway.memory import MemoryStore
from tests.rig.gateway import made_key


class StoppedClock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, delay_s: float) -> None:
        self.at += delay_s

    def new_id(self) -> UUID:
        return uuid4()


async def test_a_revoked_key_works_for_some_seconds_and_no_longer() -> None:
    store, clock = MemoryStore(), StoppedClock()
    key, caller = made_key()
    store.keys[hash_api_key(key)] = caller
    keeper = Doorkeeper(store, clock)
    assert await keeper.caller(("key", hash_api_key(key))) == caller
    store.keys.clear()
    clock.at += CACHED_S - 0.1
    assert await keeper.caller(("key", hash_api_key(key))) == caller
    clock.at += 0.1
    assert await keeper.caller(("key", hash_api_key(key))) is None


async def test_a_new_key_is_seen_after_as_long() -> None:
    store, clock = MemoryStore(), StoppedClock()
    key, caller = made_key()
    keeper = Doorkeeper(store, clock)
    assert await keeper.caller(("key", hash_api_key(key))) is None
    store.keys[hash_api_key(key)] = caller
    clock.at += CACHED_S
    assert await keeper.caller(("key", hash_api_key(key))) == caller


async def test_guesses_do_not_fill_the_memory() -> None:
    keeper = Doorkeeper(MemoryStore(), StoppedClock())
    for i in range(MAX_CACHED + 100):
        await keeper.caller(("key", i.to_bytes(4, "big")))
    assert keeper.remembered == MAX_CACHED
