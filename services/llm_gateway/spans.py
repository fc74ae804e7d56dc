"""What the span of a model call tells: of the request, and of what came of it."""

from typing import Any

import orjson

from libs.telemetry.names import (
    ATTEMPT,
    PLAN_FINGERPRINT,
    SERVER_ADDRESS,
    SERVER_PORT,
    STEP_ID,
    TENANT_ID,
    TURN_ID,
    Attributes,
    Conventions,
)
from libs.telemetry.tracing import OpenSpan
from services.llm_gateway.core.completions import Named
from services.llm_gateway.core.outcomes import Failed, Interrupted, reason_of
from services.llm_gateway.ports import Provider
from services.llm_gateway.work import Claim, Ending


def call_attributes(conventions: Conventions, claim: Claim, provider: Provider) -> Attributes:
    """Attributes of a call that is about to begin."""
    facts = claim.facts
    server: Attributes = {}
    if provider.server is not None:
        server[SERVER_ADDRESS], server[SERVER_PORT] = provider.server
    return {
        **conventions.call(str(facts.conversation_id), provider=provider.name, model=facts.model),
        **server,
        TENANT_ID: str(facts.tenant_id),
        TURN_ID: str(facts.turn_id),
        STEP_ID: str(facts.step_id),
        ATTEMPT: facts.attempt,
        PLAN_FINGERPRINT: claim.fingerprint,
    }


def tell_request(span: OpenSpan, conventions: Conventions, payload: bytes) -> None:
    """Note the knobs of a request, and its messages where texts may be shown.

    The payload is only read where the span is kept: reading it costs milliseconds.
    """
    if not span.is_kept:
        return
    try:
        body: Any = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return  # its fingerprint is judged elsewhere
    if not isinstance(body, dict):
        return
    names = conventions.names
    span.set(names.request_max_tokens, _number(body, "max_completion_tokens", "max_tokens"))
    span.set(names.request_temperature, _number(body, "temperature"))
    span.set(names.request_top_p, _number(body, "top_p"))
    if conventions.shows_content:
        shown = [
            _message(message.get("role"), message.get("content")) for message in _messages(body)
        ]
        span.set(names.input_messages, orjson.dumps(shown).decode())


def tell_ending(span: OpenSpan, conventions: Conventions, ending: Ending) -> None:
    """Note what came of a call."""
    if not span.is_kept:
        return
    names = conventions.names
    reason = reason_of(ending.outcome)
    span.set(names.response_finish_reasons, [reason])
    if ending.measured.first_token_ms is not None:
        span.set(names.response_first_chunk, ending.measured.first_token_ms / 1000)
    usage = ending.usage
    if usage is not None:
        tokens = conventions.usage(
            {"input": usage.input, "output": usage.output, "cached": usage.cached}
        )
        for name, value in tokens.items():
            span.set(name, value)
    if conventions.shows_content:
        answer = {**_message("assistant", ending.text.text), "finish_reason": reason}
        span.set(names.output_messages, orjson.dumps([answer]).decode())
    if isinstance(ending.outcome, Failed | Interrupted):
        span.fail(ending.outcome.reason)


def tell_answer(
    span: OpenSpan, conventions: Conventions, named: Named, reasoning: int | None
) -> None:
    """Note what the provider alone says of its answer."""
    names = conventions.names
    if span.is_kept:
        span.set(names.response_id, named.id)
        span.set(names.response_model, named.model)
        span.set(names.usage_reasoning, reasoning)


def _number(body: dict[str, Any], *fields: str) -> float | int | None:
    given = (body[field] for field in fields if isinstance(body.get(field), int | float))
    return next(given, None)


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages")
    found = messages if isinstance(messages, list) else []
    return [message for message in found if isinstance(message, dict)]


def _message(role: Any, text: Any) -> dict[str, Any]:
    """A message as the conventions write it: a role, and parts."""
    return {"role": str(role), "parts": [{"type": "text", "content": text}]}
