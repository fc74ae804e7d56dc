"""Plain HTTP with a key, byte for byte, for tests that send what no client of ours would send."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import orjson

from tests.rig.client import Client
from tests.rig.house import REST_WITHIN_S, ApiKey, House
from tests.rig.waiting import until

TIMEOUT = aiohttp.ClientTimeout(total=20)
TABLES = (
    "ingestion.conversations",
    "ingestion.turns",
    "ingestion.messages",
    "ingestion.request_outcomes",
    "context_assembly.steps",
    "llm_gateway.work",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def code(self) -> str | None:
        """Slug of the problem, if it is one and says so everywhere alike."""
        if "problem+json" not in self.headers.get("Content-Type", ""):
            return None
        body = self.body
        assert body["status"] == self.status
        assert body["type"].endswith(f"/problems/{body['code']}")
        assert body["detail"]
        assert body["request_id"] == self.headers["X-Request-ID"]
        code: str = body["code"]
        return code

    @property
    def told(self) -> dict[str, Any]:
        """The document without what differs from request to request by design."""
        return {k: v for k, v in self.body.items() if k not in ("request_id", "instance")}


class Web:
    """Plain HTTP with a key, byte for byte."""

    def __init__(self, house: House, session: aiohttp.ClientSession, key: ApiKey) -> None:
        self.house = house
        self.key = key
        self._session = session
        self.url = house.gateway_url()

    async def send(
        self,
        method: str,
        path: str,
        data: Any = None,
        headers: Mapping[str, str] | list[tuple[str, str]] = (),  # type: ignore[assignment]
    ) -> Answer:
        """One request; the key is sent unless the headers say who asks."""
        given = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
        if not any(name.lower() == "authorization" for name, _ in given):
            given.append(("Authorization", f"Bearer {self.key.key}"))
        if isinstance(data, bytes):
            data = io.BytesIO(data)
        async with self._session.request(
            method, self.url + path, data=data, headers=given, timeout=TIMEOUT,
            skip_auto_headers=("Content-Type",),
        ) as response:  # fmt: skip
            raw = await response.read()
            body = orjson.loads(raw) if raw[:1] == b"{" else {"raw": raw}
            return Answer(response.status, response.headers, body)

    async def post(self, conversation: UUID, data: Any, **headers: str) -> Answer:
        """Send a message with a fresh key."""
        return await self.send(
            "POST",
            f"/v1/conversations/{conversation}/messages",
            data,
            {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex, **headers},
        )

    async def stored(self) -> dict[str, int]:
        """Rows of this key's tenant, by table, once nothing is on its way any more.

        The work of an ended turn is deleted when its `turn.ended` is read, which is after the end.
        """
        await self.house.come_to_rest()
        await until(self._no_work_is_left, within_s=REST_WITHIN_S)
        counts = ", ".join(
            f'(select count(*) from {table} where tenant_id = t.id) as "{table}"'  # noqa: S608
            for table in TABLES
        )
        (row,) = await self.house.rows(
            f"select {counts} from (select %s::uuid as id) t",  # noqa: S608
            self.key.tenant_id,
        )
        return row

    async def _no_work_is_left(self) -> bool:
        return not await self.house.rows(
            "select from llm_gateway.work where tenant_id = %s", self.key.tenant_id
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A tenant with one conversation, in which one turn has been answered."""

    web: Web
    client: Client
    conversation: UUID
    turn: UUID


def body(**fields: Any) -> bytes:
    """A JSON object as a request's body."""
    return orjson.dumps(fields)
