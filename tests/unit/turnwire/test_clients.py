"""What both clients do with refusals, silence and broken streams; the server is a script."""

import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import httpx
import pytest

import turnwire
from turnwire import Ask, AsyncClient, Client, DamagedAnswer, Patience, ProblemError, Unavailable

ID = UUID("01890000-0000-7000-8000-000000000001")
QUICK = Patience(away_s=0.25, first_pause_s=0.001, longest_pause_s=0.01)
ACCEPTED = {
    "conversation_id": str(ID),
    "turn_id": str(ID),
    "user_message_id": str(ID),
    "assistant_message_id": str(ID),
    "seq": 1,
    "status": "generating",
    "request_id": str(ID),
}
TURN = {
    "id": str(ID),
    "conversation_id": str(ID),
    "user_message_id": str(ID),
    "assistant_message_id": str(ID),
    "seq": 1,
    "status": "cancelled",
    "reason": "user",
}
Step: TypeAlias = httpx.Response | httpx.TransportError


class Script:
    """Answers requests in order, the last one for ever, and remembers them."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        step = self.steps[min(len(self.requests), len(self.steps)) - 1]
        if isinstance(step, httpx.TransportError):
            raise step
        return httpx.Response(step.status_code, headers=step.headers, content=step.content)

    @property
    def keys(self) -> list[str | None]:
        return [request.headers.get("idempotency-key") for request in self.requests]


Run: TypeAlias = Callable[[Script, str, dict[str, Any]], Awaitable[Any]]


async def _blocking(script: Script, method: str, arguments: dict[str, Any]) -> Any:
    with Client(
        "http://t", "tw_key", patience=QUICK, transport=httpx.MockTransport(script)
    ) as client:
        found = getattr(client, method)(**arguments)
        return found.result() if method == "follow" else found


async def _asyncio(script: Script, method: str, arguments: dict[str, Any]) -> Any:
    async with AsyncClient(
        "http://t", "tw_key", patience=QUICK, transport=httpx.MockTransport(script)
    ) as client:
        found = getattr(client, method)(**arguments)
        return await (found.result() if method == "follow" else found)


@pytest.fixture(params=[_blocking, _asyncio], ids=["blocking", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


def answer(status: int, body: object, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=body, headers=headers)


def problem(slug: str, status: int, *, retry_after: str | None = None) -> httpx.Response:
    body = {"code": slug, "title": slug, "detail": "Do it.", "status": status, "retryable": True}
    return answer(status, body, **({"Retry-After": retry_after} if retry_after else {}))


def stream(*events: tuple[str, str, dict[str, Any]]) -> httpx.Response:
    raw = "".join(f"id: {i}\nevent: {name}\ndata: {json.dumps(d)}\n\n" for i, name, d in events)
    return httpx.Response(200, content=raw.encode())


def done(text: str) -> tuple[str, str, dict[str, Any]]:
    raw = text.encode()
    end = {"status": "completed", "reason": None, "length": len(raw)}
    return "2147483647-1", "done", end | {"sha256": hashlib.sha256(raw).hexdigest()}


POST = {"conversation_id": ID, "content": "Hi"}


@pytest.mark.parametrize(
    "first",
    [
        httpx.ReadTimeout("slow"),
        httpx.ConnectError("away"),
        problem("dependency-unavailable", 503),
        problem("internal-error", 500),
        problem("quota-exceeded", 429, retry_after="0"),
        problem("idempotency-in-progress", 409),
        httpx.Response(502, content=b"<html>bad gateway</html>"),
    ],
    ids=str,
)
async def test_what_may_pass_is_asked_again_with_the_same_key(run: Run, first: Step) -> None:
    script = Script(first, answer(200, ACCEPTED, **{"Idempotent-Replayed": "true"}))

    turn = await run(script, "post", POST)

    assert turn.is_replay
    assert script.keys == [f'"{turn.key}"'] * 2


@pytest.mark.parametrize(
    ("slug", "status"),
    [("turn-in-progress", 409), ("stale-parent", 409), ("not-found", 404), ("forbidden", 403)],
)
async def test_what_waiting_does_not_change_is_told_at_once(
    run: Run, slug: str, status: int
) -> None:
    script = Script(problem(slug, status))

    with pytest.raises(ProblemError) as caught:
        await run(script, "post", {**POST, "ask": Ask(policy="reject", key="mine")})

    assert (caught.value.slug, caught.value.key) == (slug, "mine")
    assert len(script.requests) == 1
    assert json.loads(script.requests[0].content) == {"content": "Hi", "policy": "reject"}


async def test_patience_ends_and_the_key_stays_with_the_caller(run: Run) -> None:
    script = Script(httpx.ConnectError("away"))

    with pytest.raises(Unavailable) as caught:
        await run(script, "post", {**POST, "ask": Ask(key="mine")})

    assert caught.value.key == "mine"
    assert len(script.requests) > 3


async def test_a_wait_that_is_longer_than_the_patience_is_not_begun(run: Run) -> None:
    script = Script(problem("quota-exceeded", 429, retry_after="30"))

    with pytest.raises(ProblemError) as caught:
        await run(script, "post", POST)

    assert caught.value.retry_after_s == 30
    assert len(script.requests) == 1


async def test_a_deletion_whose_answer_was_lost_is_done(run: Run) -> None:
    script = Script(httpx.ReadError("cut"), problem("not-found", 404))

    assert await run(script, "delete_conversation", {"conversation_id": ID}) is None
    with pytest.raises(ProblemError):
        await run(Script(problem("not-found", 404)), "delete_conversation", {"conversation_id": ID})


async def test_a_cancellation_whose_answer_was_lost_gives_the_turn(run: Run) -> None:
    script = Script(
        httpx.ReadError("cut"), problem("turn-already-terminal", 409), answer(200, TURN)
    )

    turn = await run(script, "cancel", {"turn_id": ID})

    assert (turn.status, turn.reason) == ("cancelled", "user")
    assert [r.method for r in script.requests] == ["POST", "POST", "GET"]
    with pytest.raises(ProblemError):
        await run(Script(problem("turn-already-terminal", 409)), "cancel", {"turn_id": ID})


async def test_a_stream_goes_on_behind_its_newest_event(run: Run) -> None:
    script = Script(
        stream(("0-1", "message_started", {}), ("1-2", "content_delta", {"text": "a"})),
        problem("admission-rejected", 503, retry_after="0"),
        httpx.ConnectError("away"),
        stream(("1-3", "content_delta", {"text": "b"})),
        stream(done("ab")),
    )

    found = await run(script, "follow", {"turn_id": ID})

    assert (found.text, found.status) == ("ab", "completed")
    last_ids = [request.headers.get("last-event-id") for request in script.requests]
    assert last_ids == [None, "1-2", "1-2", "1-2", "1-3"]


async def test_a_snapshot_replaces_all_text_so_far(run: Run) -> None:
    script = Script(
        stream(
            ("1-2", "content_delta", {"text": "lost"}),
            ("2-5", "snapshot", {"text": "whole"}),
            done("whole"),
        )
    )

    assert (await run(script, "follow", {"turn_id": ID})).text == "whole"


async def test_a_text_that_differs_from_its_end_is_read_anew_once(run: Run) -> None:
    damaged = stream(("1-3", "content_delta", {"text": "b"}), done("ab"))
    whole = stream(("1-3", "snapshot", {"text": "ab"}), done("ab"))
    script = Script(damaged, whole)

    assert (await run(script, "follow", {"turn_id": ID})).text == "ab"
    assert "last-event-id" not in script.requests[1].headers
    with pytest.raises(DamagedAnswer):
        await run(Script(damaged, damaged), "follow", {"turn_id": ID})


async def test_a_stream_that_is_gone_or_refused_is_told(run: Run) -> None:
    with pytest.raises(ProblemError) as caught:
        await run(Script(problem("stream-expired", 410)), "follow", {"turn_id": ID})

    assert caught.value.slug == "stream-expired"


async def test_a_stream_that_never_comes_back_ends_the_patience(run: Run) -> None:
    script = Script(stream(("1-2", "content_delta", {"text": "a"})), stream())

    with pytest.raises(Unavailable):
        await run(script, "follow", {"turn_id": ID})


def test_both_clients_have_the_same_methods() -> None:
    def shape(kind: type) -> dict[str, Sequence[str]]:
        return {
            name.replace("aclose", "close"): list(inspect.signature(found).parameters)
            for name, found in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert shape(Client) == shape(AsyncClient)
    assert set(turnwire.__all__) <= set(dir(turnwire))
