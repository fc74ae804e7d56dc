"""Asks every operation of the interface's document for things that nobody would ask for."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from services.frontend_gateway.core.problems import KINDS

ENDLESS = frozenset({"stream_turn", "stream_conversation"})
"""Operations whose good answer does not end by itself: of it the head is read, and no more."""

LAST = ("delete_message", "delete_conversation", "restore_conversation", "logout")
"""Operations that take away what the others ask about, so they come after them, in this order."""

ANSWER_WITHIN_S = 20.0
SERVER_ERROR = 500
CLIENT_ERROR = 400
WRONG_IN_FOUR = 2
"""Of four requests so many break the document: wrong types, missing and unknown fields, bad ids."""

Told = dict[str, dict[int, set[str]]]
"""By operation: the statuses it answered, and with each the slugs of its problems."""


def fuzz(
    url: str, *, keys: Sequence[str], known: Sequence[Mapping[str, str]], examples: int
) -> Told:
    """Ask each operation ``examples`` times, half of them against the document.

    Args:
        keys: API keys to ask with, of different rights.
        known: Ids that exist and belong together, by the name of the parameter; asked for among
            others.

    Raises:
        AssertionError: An answer is a mistake of the server's, or no problem that is documented.
    """
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = {
        str(operation.definition.raw["operationId"]): operation
        for operation in (result.ok() for result in schema.get_all_operations())
    }
    told: Told = {}
    with requests.Session() as session:
        for name in sorted(operations, key=lambda name: LAST.index(name) if name in LAST else -1):
            asking = _Asking(session, url, keys, known, is_endless=name in ENDLESS)
            told[name] = asking.ask(operations[name], examples)
    return told


class _Asking:
    """How one operation is asked."""

    def __init__(
        self,
        session: requests.Session,
        url: str,
        keys: Sequence[str],
        known: Sequence[Mapping[str, str]],
        *,
        is_endless: bool,
    ) -> None:
        self._session = session
        self._url = url
        self._keys = keys
        self._known = known
        self._is_endless = is_endless
        self._told: dict[int, set[str]] = {}

    def ask(self, operation: Any, examples: int) -> dict[int, set[str]]:
        """Ask one operation; what it answered."""
        good = operation.as_strategy(GenerationMode.POSITIVE)
        wrong = operation.as_strategy(GenerationMode.NEGATIVE)

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            verbosity=Verbosity.quiet,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(data=st.data())
        def ask_once(data: st.DataObject) -> None:
            is_wrong = data.draw(st.integers(0, 3)) < WRONG_IN_FOUR and _can_be_wrong(operation)
            case = data.draw(wrong if is_wrong else good)
            self._send(case, data, is_wrong=is_wrong)

        ask_once()
        return self._told

    def _send(self, case: Case, data: st.DataObject, *, is_wrong: bool) -> None:
        if not is_wrong or data.draw(st.booleans()):
            ids = data.draw(st.sampled_from([*self._known, {}]))
            for name in dict(case.path_parameters or {}):
                case.path_parameters[name] = ids.get(name, str(uuid4()))
            for name in set(case.query or {}) & set(ids):
                case.query[name] = ids[name]
        if not is_wrong and data.draw(st.booleans()):
            for part in (case.query, case.body):
                if isinstance(part, dict):
                    part.pop("step", None)  # a step by chance is one that nobody made
        headers = {
            "Authorization": f"Bearer {data.draw(st.sampled_from(self._keys))}",
            "Origin": self._url,  # as a page of this server's own would
        }
        sent = case.as_transport_kwargs(base_url=self._url, headers=headers)
        with self._session.request(
            **sent, timeout=ANSWER_WITHIN_S, stream=True, allow_redirects=False
        ) as answer:
            is_stream = self._is_endless and answer.status_code < CLIENT_ERROR
            content = b"" if is_stream else answer.content
        slugs = self._told.setdefault(answer.status_code, set())
        slugs |= _checked(case, answer.status_code, answer.headers.get("content-type", ""), content)


def _can_be_wrong(operation: Any) -> bool:
    """Whether there is anything in a request that could break the document."""
    raw = operation.definition.raw
    return bool(raw.get("parameters") or raw.get("requestBody"))


def _checked(case: Case, status: int, kind: str, content: bytes) -> set[str]:
    """The slug of a problem that is as documented; none where the answer is none."""
    asked = f"{case.method} {case.formatted_path}: {status}"
    assert status < SERVER_ERROR, asked
    if status < CLIENT_ERROR:
        return set()
    assert kind.startswith("application/problem+json"), f"{asked} {kind}"
    document = json.loads(content)
    code = document["code"]
    assert code in KINDS, f"{asked} {code}"
    assert (document["status"], KINDS[code].status) == (status, status), f"{asked} {code}"
    documented = case.operation.definition.raw["responses"]
    assert str(status) in documented, f"{asked} {code} is not documented"
    return {code}
