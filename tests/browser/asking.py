"""Questions on the chat page before a gateway on twins; what answers them is written by hand."""

import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

from playwright.async_api import Browser, Locator, expect

from services.frontend_gateway.core.turns import TurnView
from tests.browser.opening import Chat, opened
from tests.rig.gateway import GatewayRig, started
from tests.rig.waiting import until

LONG = """## How the crossing works

The ferry leaves **every forty minutes** from [the harbour](https://harbour.example/), *not* from
the old quay. Tickets:

| Ticket | Price | Valid |
|:--|--:|:-:|
| Single | 4.20 | one day |
| Ten | 38.00 | a year |

1. Buy a ticket.
2. Show it on board:
   - on paper, or
   - on a screen.

```python
def crossing(minutes: int = 40) -> str:
    return f"{minutes} minutes"
```

> Dogs travel free.

- [x] windows open
- [ ] engine checked
"""
"""An answer with every kind of block."""

REFUSAL = {"code": "quota-exceeded", "detail": "9 turns wait already."}


@contextlib.asynccontextmanager
async def chatting(rig: GatewayRig, browser: Browser, *, width: int = 1280) -> AsyncIterator[Chat]:
    """The chat page of somebody who is signed in."""
    async with opened(browser, rig.url, rig.key, width=width) as page:
        yield Chat(page)


async def turns(rig: GatewayRig, number: int) -> TurnView:
    """The newest turn, once there are so many."""

    async def are_there() -> bool:
        return len(rig.store.turn_rows) == number

    await until(are_there)
    return list(rig.store.turn_rows.values())[-1]


async def ask(chat: Chat, rig: GatewayRig, text: str) -> TurnView:
    """Send a message, and have its turn begun."""
    before = len(rig.store.turn_rows)
    await chat.send(text)
    turn = await turns(rig, before + 1)
    await rig.live.append(turn.id, [started(turn)])
    return turn


async def streamed(chat: Chat, rig: GatewayRig, text: str) -> TurnView:
    """Ask, and have the page follow before there is anything to see."""
    turn = await ask(chat, rig, text)

    async def is_followed() -> bool:
        return rig.gateway.hub.stream_count == 1

    await until(is_followed)
    return turn


async def answered(chat: Chat, rig: GatewayRig, question: str, text: str, **end: Any) -> TurnView:
    """Ask, and have the answer streamed in pieces."""
    turn = await ask(chat, rig, question)
    pieces = re.findall(r".{1,40}", text, re.DOTALL)
    await rig.write(turn, pieces)
    await rig.finish(turn, text, f"1-{len(pieces) + 1}", **end)
    await chat.see_end_of(turn.assistant_message_id)
    return turn


async def refused(chat: Chat, rig: GatewayRig, text: str) -> Locator:
    """Send a message that the server refuses, as all further ones, after one that was answered."""
    await answered(chat, rig, "Hello?", "Hello.")
    rig.ingestion.problem = REFUSAL
    await chat.send(text)
    await expect(chat.questions.last).to_contain_text("not sent: 9 turns wait already")
    return chat.questions.last
