"""Names of spans and attributes, in one place, since the conventions for models still move.

``OTEL_SEMCONV_STABILITY_OPT_IN`` chooses among them, a list of words separated by commas:
``gen_ai_latest_experimental`` is what we emit in any case, ``gen_ai_v1_36`` asks for the names that
older back ends know, ``openinference`` and ``langfuse`` add the names of those two beside ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Semconv = Literal["latest", "v1_36"]
Role = Literal["AGENT", "LLM"]
AttributeValue: TypeAlias = str | int | float | bool | Sequence[str]
Attributes: TypeAlias = dict[str, AttributeValue]

AGENT: Final = "turnwire"
"""What answers a turn, as the conventions for agents call it; the version stands beside it."""

TURN_ID: Final = "turnwire.turn.id"
TURN_STATUS: Final = "turnwire.turn.status"
TURN_REASON: Final = "turnwire.turn.reason"
TENANT_ID: Final = "turnwire.tenant.id"
STEP_ID: Final = "turnwire.step.id"
ATTEMPT: Final = "turnwire.attempt"
PLAN_FINGERPRINT: Final = "turnwire.plan.fingerprint"
BATCH_SIZE: Final = "messaging.batch.message_count"

MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_DESTINATION: Final = "messaging.destination.name"
MESSAGING_PARTITION: Final = "messaging.destination.partition.id"
MESSAGING_KEY: Final = "messaging.kafka.message.key"
MESSAGING_OFFSET: Final = "messaging.kafka.offset"
MESSAGING_CONVERSATION: Final = "messaging.message.conversation_id"

SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"

SESSION_ID: Final = "session.id"
USER_ID: Final = "user.id"
LANGFUSE_TRACE_NAME: Final = "langfuse.trace.name"
OPENINFERENCE_KIND: Final = "openinference.span.kind"
OPENINFERENCE_MODEL: Final = "llm.model_name"
OPENINFERENCE_PROMPT_TOKENS: Final = "llm.token_count.prompt"
OPENINFERENCE_COMPLETION_TOKENS: Final = "llm.token_count.completion"
OPENINFERENCE_TOTAL_TOKENS: Final = "llm.token_count.total"


@dataclass(frozen=True, slots=True)
class GenAiNames:
    """Attributes of turns and model calls."""

    provider_name: str = "gen_ai.provider.name"
    operation_name: str = "gen_ai.operation.name"
    agent_id: str = "gen_ai.agent.id"
    agent_name: str = "gen_ai.agent.name"
    agent_version: str = "gen_ai.agent.version"
    conversation_id: str = "gen_ai.conversation.id"
    request_model: str = "gen_ai.request.model"
    request_max_tokens: str = "gen_ai.request.max_tokens"
    request_temperature: str = "gen_ai.request.temperature"
    request_top_p: str = "gen_ai.request.top_p"
    request_stream: str = "gen_ai.request.stream"
    response_model: str = "gen_ai.response.model"
    response_id: str = "gen_ai.response.id"
    response_finish_reasons: str = "gen_ai.response.finish_reasons"
    response_first_chunk: str = "gen_ai.response.time_to_first_chunk"
    usage_input: str = "gen_ai.usage.input_tokens"
    usage_output: str = "gen_ai.usage.output_tokens"
    usage_cache_read: str = "gen_ai.usage.cache_read.input_tokens"
    usage_reasoning: str = "gen_ai.usage.reasoning.output_tokens"
    input_messages: str = "gen_ai.input.messages"
    output_messages: str = "gen_ai.output.messages"


LATEST: Final = GenAiNames()
V1_36: Final = GenAiNames(provider_name="gen_ai.system")

_BY_VERSION: Final[dict[Semconv, GenAiNames]] = {"latest": LATEST, "v1_36": V1_36}

_CONTENT_ON_SPANS: Final = frozenset({"SPAN_ONLY", "SPAN_AND_EVENT"})
"""Of the words of ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``; we send no events."""


@dataclass(frozen=True, slots=True)
class Conventions:
    """What spans are told in.

    Attributes:
        names: By version of the conventions for models.
        openinference: Phoenix's names are written as well.
        langfuse: Langfuse's names are written as well.
        shows_content: Prompts and answers are written on model calls. Off unless asked for.
    """

    names: GenAiNames = LATEST
    openinference: bool = False
    langfuse: bool = False
    shows_content: bool = False

    def place(self, role: Role, conversation_id: str) -> Attributes:
        """Whose conversation a turn or a call belongs to, and which of the two it is."""
        told: Attributes = {self.names.conversation_id: conversation_id}
        if self.openinference or self.langfuse:
            told[SESSION_ID] = conversation_id
        if self.openinference:
            told[OPENINFERENCE_KIND] = role
        return told

    def person(self, principal_id: str) -> Attributes:
        """Whose request it is, where a back end groups by it; an id of ours, never a name."""
        return {USER_ID: principal_id} if self.openinference or self.langfuse else {}

    def turn(self, conversation_id: str, *, version: str) -> Attributes:
        """Attributes of a turn's span."""
        names = self.names
        told: Attributes = {
            names.operation_name: "invoke_agent",
            names.agent_id: AGENT,
            names.agent_name: AGENT,
            names.agent_version: version,
            **self.place("AGENT", conversation_id),
        }
        if self.langfuse:
            told[LANGFUSE_TRACE_NAME] = turn_span()
        return told

    def call(self, conversation_id: str, *, provider: str, model: str) -> Attributes:
        """Attributes of a model call's span, before its answer."""
        names = self.names
        told: Attributes = {
            names.operation_name: "chat",
            names.provider_name: provider,
            names.request_model: model,
            names.request_stream: True,
            **self.place("LLM", conversation_id),
        }
        if self.openinference:
            told[OPENINFERENCE_MODEL] = model
        return told

    def usage(self, tokens: Mapping[Literal["input", "output", "cached"], int]) -> Attributes:
        """Attributes that tell what a call or a turn used."""
        names = self.names
        told: Attributes = {
            names.usage_input: tokens["input"],
            names.usage_output: tokens["output"],
            names.usage_cache_read: tokens["cached"],
        }
        if self.openinference:
            told[OPENINFERENCE_PROMPT_TOKENS] = tokens["input"]
            told[OPENINFERENCE_COMPLETION_TOKENS] = tokens["output"]
            told[OPENINFERENCE_TOTAL_TOKENS] = tokens["input"] + tokens["output"]
        return told


def gen_ai_names(opt_in: str) -> GenAiNames:
    """The names that a comma-separated ``OTEL_SEMCONV_STABILITY_OPT_IN`` asks for."""
    asked = _words(opt_in)
    old = "gen_ai_v1_36" in asked and "gen_ai_latest_experimental" not in asked
    return _BY_VERSION["v1_36" if old else "latest"]


def conventions(opt_in: str = "", capture_content: str = "") -> Conventions:
    """What the two variables ask for.

    Args:
        opt_in: ``OTEL_SEMCONV_STABILITY_OPT_IN``.
        capture_content: ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``; anything but the
            two words that mean spans shows nothing.
    """
    asked = _words(opt_in)
    return Conventions(
        gen_ai_names(opt_in),
        openinference="openinference" in asked,
        langfuse="langfuse" in asked,
        shows_content=capture_content.strip().upper() in _CONTENT_ON_SPANS,
    )


def _words(text: str) -> set[str]:
    return {part.strip() for part in text.split(",")}


def turn_span() -> str:
    """Span of a whole turn, from acceptance to its end."""
    return f"invoke_agent {AGENT}"


def model_call_span(model: str) -> str:
    """Span of one call of a model."""
    return f"chat {model}"


def send_span(topic: str) -> str:
    """Span of a record from its hand-over to the producer to the broker's acknowledgement."""
    return f"send {topic}"


def process_span(topic: str) -> str:
    """Span of handling a record."""
    return f"process {topic}"


def request_span(method: str, route: str) -> str:
    """Span of an HTTP request; the route's template, never its path."""
    return f"{method} {route}"


def record(topic: str, key: str) -> Attributes:
    """Attributes of a record that is sent or handled; its key is its conversation's id."""
    return {
        MESSAGING_SYSTEM: "kafka",
        MESSAGING_DESTINATION: topic,
        MESSAGING_KEY: key,
        MESSAGING_CONVERSATION: key,
    }


def handled_record(topic: str, key: str, *, partition: int, offset: int) -> Attributes:
    """Attributes of a record that is handled, with the place where it stands."""
    return {
        **record(topic, key),
        MESSAGING_PARTITION: str(partition),
        MESSAGING_OFFSET: offset,
    }
