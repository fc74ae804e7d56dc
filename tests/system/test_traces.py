"""Every turn is one connected trace: over all services, repeats and restarts, without its text."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence, Set
from pathlib import Path
from uuid import UUID, uuid4

import aiohttp
import orjson
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, TopicPartition
from jsonschema import Draft202012Validator

from libs import ids
from libs.telemetry.names import LATEST
from schemas.topic_files import load_topics
from services.frontend_gateway.core.problems import KINDS
from services.ops.operations import opened_operations
from tests.rig.canaries import (
    NOT_DRIVEN,
    Canaries,
    ask_wrongly,
    canaries_in,
    ends_of,
    set_scene,
    stop_running,
    wrong_answers,
    wrong_records,
    wrong_requests,
)
from tests.rig.client import Client
from tests.rig.house import House, Size
from tests.rig.ledger import Post, canary_of
from tests.rig.otlp import LANGFUSE_PATH, Collector, Span, breaks
from tests.rig.provider import Rule
from tests.rig.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(300),  # the first test has the start of a second house before it
]

CONVERSATIONS = 20
TURNS_EACH = 5
CHANGED = 5
"""Of the conversations: in these an answer is made again and a question edited."""

TOPICS = ("turn.requests", "turn.events", "context.events", "generation.events")
HOPS = {
    "invoke_agent turnwire",
    *(f"send {topic}" for topic in TOPICS),
    *(f"process {topic}" for topic in TOPICS),
    "chat scripted",
}
"""Of every turn, behind the request that asked for it."""

INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = 1, 2, 3, 4, 5
"""Kinds of spans, as the protocol numbers them."""

CLIENTS_SPAN = "00f067aa0ba902b7"

ROOT = Path(__file__).resolve().parents[2]
LOG_LINE = json.loads((ROOT / "libs/telemetry/log_line.schema.json").read_text(encoding="utf-8"))


class TracedHouse(House):
    """A house whose services send their spans to a collector."""

    def __init__(self, data_dir: Path, collector: Collector) -> None:
        super().__init__(data_dir, size=Size(gateways=2))
        self._collector = collector
        self._provider_key = f"sk-canarykey{uuid4().hex}"

    def principal_of(self, tenant: str) -> UUID:
        """Who the client of a tenant is."""
        return self._keys[tenant, "tester"].principal_id

    @property
    def secrets(self) -> list[str]:
        """Everything that lets somebody in: of people, services, the door and the provider."""
        keys = [known.key for known in self._keys.values()]
        passwords = [*self.stack.role_passwords.values(), self.stack.door_master_key]
        return [*keys, *passwords, self._provider_key, "c2NyaXB0ZWQ="]

    def environment(self, name: str, index: int = 0) -> dict[str, str]:
        """With the variables of OpenTelemetry as an operator sets them."""
        return {
            **super().environment(name, index),
            **self.tracing_environment,
            "LLM_API_KEY": self._provider_key,
        }

    @property
    def tracing_environment(self) -> dict[str, str]:
        """The variables of OpenTelemetry alone."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self._collector.url + LANGFUSE_PATH,
            "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Basic%20c2NyaXB0ZWQ=",
            "OTEL_RESOURCE_ATTRIBUTES": "openinference.project.name=tests",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "OTEL_SEMCONV_STABILITY_OPT_IN": "openinference,langfuse",
        }


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def collector() -> AsyncIterator[Collector]:
    async with Collector() as collector:
        yield collector


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def traced(
    tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> AsyncIterator[TracedHouse]:
    async with TracedHouse(tmp_path_factory.mktemp("traced"), collector) as house:
        yield house


async def trace_of(collector: Collector, post: Post, *, hops: Set[str] = frozenset()) -> list[Span]:
    """The one trace of a turn, once its own span and these have arrived and nothing is missing."""

    async def is_whole() -> bool:
        traces = collector.traces_by_turn().get(str(post.turn_id), set())
        spans = [span for span in collector.spans if span.trace_id in traces]
        names = {span.name for span in spans}
        return names >= {"invoke_agent turnwire", *hops} and not breaks(spans)

    await until(is_whole)
    (trace,) = collector.traces_by_turn()[str(post.turn_id)]
    return collector.by_trace()[trace]


async def faults_of(collector: Collector, posts: Sequence[Post]) -> dict[str, list[str]]:
    """What is wrong with the traces of these turns, by turn; empty where all are whole."""
    found: dict[str, list[str]] = {}

    async def are_whole() -> bool:
        found.clear()
        by_trace, by_turn = collector.by_trace(), collector.traces_by_turn()
        for post in posts:
            traces = by_turn.get(str(post.turn_id), set())
            wrong = [f"{len(traces)} traces"] if len(traces) != 1 else []
            for trace in traces:
                missing = HOPS - {span.name for span in by_trace[trace]}
                asked = any(span.kind == SERVER for span in by_trace[trace])
                wrong += [*breaks(by_trace[trace]), *(f"no {name}" for name in sorted(missing))]
                wrong += [] if asked else ["no request"]
            if wrong:
                found[str(post.turn_id)] = wrong
        return not found

    try:
        await until(are_whole)
    except TimeoutError:
        return found
    return {}


async def talk(client: Client, number: int) -> list[Post]:
    """Turns of one conversation; each is posted twice, to two gateways."""
    conversation = await client.conversation()
    posts = []
    for turn in range(TURNS_EACH):
        post = await client.send(client.note(conversation, f"{number}.{turn}"), gateway=turn)
        await client.send_once(post, gateway=turn + 1)
        await client.follow(post)
        posts.append(post)
    if number < CHANGED:
        turn_id = posts[-1].turn_id
        assert turn_id is not None
        question = ids.message_id(turn_id, "user")
        asked = await change(client, conversation, "POST", f"/v1/turns/{turn_id}/regenerate", {})
        path = f"/v1/conversations/{conversation}/messages/{question}"
        posts += [asked, await change(client, conversation, "PATCH", path, {"content": "Again"})]
    return posts


async def change(
    client: Client, conversation: UUID, method: str, path: str, wish: dict[str, str]
) -> Post:
    """A turn that came of a change of an earlier one, followed to its end."""
    post = client.note(conversation, "changed")
    headers = {"Idempotency-Key": post.key}
    post.replies.append(await client.request(method, path, json=wish, headers=headers))
    await client.follow(post)
    return post


async def test_all_turns_without_a_fault_have_exactly_one_connected_trace(
    traced: TracedHouse, collector: Collector
) -> None:
    client = await traced.client()

    async with asyncio.timeout(90):
        done = await asyncio.gather(*(talk(client, n) for n in range(CONVERSATIONS)))
    posts = [post for posts in done for post in posts]

    assert len(posts) == CONVERSATIONS * TURNS_EACH + 2 * CHANGED
    assert await faults_of(collector, posts) == {}
    assert {span.service for span in await trace_of(collector, posts[0], hops=HOPS)} == {
        "frontend_gateway",
        "ingestion",
        "context_assembly",
        "llm_gateway",
    }


async def test_a_trace_goes_on_over_a_restart_of_every_service(
    traced: TracedHouse, collector: Collector
) -> None:
    client = await traced.client("restarting")
    posts = []
    for name in ("frontend_gateway", "ingestion", "context_assembly", "llm_gateway"):
        marker = uuid4().hex[:8]
        traced.provider.script(Rule(match=marker, deltas=["It ", "goes ", "on."], delay_ms=300))
        post = await client.send(client.note(await client.conversation(), f"{marker} {name}"))
        await traced.process(name).restart(env=traced.environment(name))
        await client.follow(post)
        posts.append(post)
    await traced.all_ready()

    assert await faults_of(collector, posts) == {}


async def test_a_turn_that_fails_or_is_stopped_has_a_whole_trace_that_says_so(
    traced: TracedHouse, collector: Collector
) -> None:
    client = await traced.client("failing")
    refused, stopped = uuid4().hex[:8], uuid4().hex[:8]
    traced.provider.script(Rule(match=refused, status=401))
    traced.provider.script(Rule(match=stopped, deltas=["on "], delay_ms=50, never_ends=True))
    failing = await client.say(await client.conversation(), f"{refused} refused")
    slow = await client.send(client.note(await client.conversation(), f"{stopped} stopped"))
    assert (await client.request("POST", f"/v1/turns/{slow.turn_id}/cancel")).status == 202
    await client.follow(slow)

    (turn,) = [s for s in await trace_of(collector, failing) if s.name.startswith("invoke_agent")]
    assert turn.failed
    assert turn.attributes["error.type"] == turn.attributes["turnwire.turn.reason"]
    assert turn.attributes["turnwire.turn.status"] == "failed"
    stop = "POST /v1/turns/{turn_id}/cancel"
    spans = await trace_of(collector, slow, hops={stop})
    (turn,) = [s for s in spans if s.name.startswith("invoke_agent")]
    assert turn.attributes["turnwire.turn.status"] == "cancelled"
    assert not turn.failed


async def test_a_turn_that_an_operator_ended_has_a_whole_trace(
    traced: TracedHouse,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    client, marker = await traced.client("operated"), uuid4().hex[:8]
    traced.provider.script(Rule(match=marker, deltas=["on "], delay_ms=50, never_ends=True))
    posts = [
        await client.send(client.note(await client.conversation(), f"{marker} {name}"))
        for name in ("page", "command")
    ]
    page, command = (post.turn_id for post in posts)
    assert command is not None
    key = await traced.make_key("operated", "operator", scopes=("admin",))
    reply = await client.request(
        "POST",
        f"/v1/ops/turns/{page}/end",
        json={"dry_run": False},
        headers={"Authorization": f"Bearer {key.key}"},
    )
    assert reply.status == 200
    url = traced.stack.service_database_url("ops")
    for name, value in {**traced.tracing_environment, "TURNWIRE_OPS__DATABASE_URL": url}.items():
        monkeypatch.setenv(name, value)
    async with opened_operations(tmp_path) as operations:
        assert await operations.acts.end_turn(command, "user", dry_run=True)
        assert await operations.acts.end_turn(command, "user", dry_run=False)

    for post, service, status in zip(
        posts, ("frontend_gateway", "ops"), ("failed", "cancelled"), strict=True
    ):
        await client.follow(post)
        spans = await trace_of(collector, post)
        (turn,) = [span for span in spans if span.name.startswith("invoke_agent")]
        assert (turn.service, turn.parent_id) == (service, "")
        assert turn.attributes["turnwire.turn.status"] == status


async def test_a_turn_joins_the_trace_that_its_client_brought(
    traced: TracedHouse, collector: Collector
) -> None:
    client = await traced.client("joining")
    conversation, trace = await client.conversation(), uuid4().hex
    post = client.note(conversation, "Join my trace")
    reply = await client.request(
        "POST",
        f"/v1/conversations/{conversation}/messages",
        json={"content": post.text},
        headers={"Idempotency-Key": post.key, "traceparent": f"00-{trace}-{CLIENTS_SPAN}-01"},
    )
    post.replies.append(reply)
    await client.follow(post)

    async def is_whole() -> bool:
        spans = collector.by_trace().get(trace, [])
        return {s.name for s in spans} >= HOPS and not breaks(spans, above=CLIENTS_SPAN)

    await until(is_whole)
    assert collector.traces_by_turn()[str(post.turn_id)] == {trace}


async def test_spans_say_what_the_conventions_ask_for_and_never_what_was_said(
    traced: TracedHouse, collector: Collector
) -> None:
    client = await traced.client("attributes")
    conversation = await client.conversation()
    post = await client.say(conversation, "Say it in my own words")
    spans = {span.name: span for span in await trace_of(collector, post, hops=HOPS)}

    turn = spans["invoke_agent turnwire"]
    assert (turn.kind, turn.parent_id) == (INTERNAL, "")
    assert (
        turn.attributes.items()
        >= {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "turnwire",
            "gen_ai.conversation.id": str(conversation),
            "turnwire.turn.id": str(post.turn_id),
            "turnwire.turn.status": "completed",
            "turnwire.tenant.id": str(client.ledger.tenant_id),
        }.items()
    )
    call = spans["chat scripted"]
    assert call.kind == CLIENT
    assert (
        call.attributes.items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai_compatible",
            "gen_ai.request.model": "scripted",
            "gen_ai.request.stream": True,
            "gen_ai.response.id": "chatcmpl-scripted",
            "gen_ai.response.model": "scripted",
            "gen_ai.conversation.id": str(conversation),
        }.items()
    )
    for name in (LATEST.usage_input, LATEST.usage_output, LATEST.response_first_chunk):
        assert call.attributes[name] > 0
    planned = spans["process turn.events"].attributes["turnwire.plan.fingerprint"]
    assert call.attributes["turnwire.plan.fingerprint"] == planned
    for topic in TOPICS:
        sent, handled = spans[f"send {topic}"], spans[f"process {topic}"]
        assert (sent.kind, handled.kind) == (PRODUCER, CONSUMER)
        record = {
            "messaging.system": "kafka",
            "messaging.destination.name": topic,
            "messaging.kafka.message.key": str(conversation),
            "messaging.message.conversation_id": str(conversation),
        }
        assert sent.attributes.items() >= record.items() <= handled.attributes.items()
        assert handled.attributes["messaging.kafka.offset"] >= 0
        assert handled.attributes["messaging.destination.partition.id"].isdigit()
    request = spans["POST /v1/conversations/{conversation_id}/messages"]
    assert request.kind == SERVER
    assert request.attributes["http.route"] == "/v1/conversations/{conversation_id}/messages"
    assert turn.began_ns <= call.began_ns < call.ended_ns <= turn.ended_ns

    everything = b"".join(collector.bodies)
    assert canary_of(client.ledger.tenant_id).encode() not in everything
    assert b"Say it in my own words" not in everything
    assert client._headers["Authorization"].removeprefix("Bearer ").encode() not in everything


async def test_langfuse_and_phoenix_find_what_they_read_in_the_payload(
    traced: TracedHouse, collector: Collector
) -> None:
    client = await traced.client("back-ends")
    conversation = await client.conversation()
    post = await client.say(conversation, "Hello")
    spans = {span.name: span for span in await trace_of(collector, post, hops=HOPS)}
    turn, call = spans["invoke_agent turnwire"], spans["chat scripted"]

    for span, kind in ((turn, "AGENT"), (call, "LLM")):
        assert span.attributes["session.id"] == str(conversation)
        assert span.attributes["openinference.span.kind"] == kind
    assert turn.attributes["langfuse.trace.name"] == "invoke_agent turnwire"
    (request,) = [span for span in spans.values() if span.kind == SERVER]
    assert UUID(request.attributes["user.id"]) == traced.principal_of("back-ends")
    prompt = call.attributes["llm.token_count.prompt"]
    answer = call.attributes["llm.token_count.completion"]
    assert call.attributes["llm.token_count.total"] == prompt + answer
    assert call.attributes["llm.model_name"] == "scripted"
    assert all(r["openinference.project.name"] == "tests" for r in collector.resources)
    assert collector.paths == {f"{LANGFUSE_PATH}/v1/traces"}
    assert all(h["authorization"] == "Basic c2NyaXB0ZWQ=" for h in collector.headers)


async def headers_of_dead_letters(house: House) -> bytes:
    """Names and values of the headers of everything on the topics of dead letters."""
    places = [
        TopicPartition(file.dead_letter_topic, number)
        for file in load_topics()
        for number in range(file.partitions.of("local"))
    ]
    found: list[bytes] = []
    async with (
        asyncio.timeout(30),
        AIOKafkaConsumer(
            bootstrap_servers=house.stack.kafka_bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer,
    ):
        consumer.assign(places)
        for place, end in (await consumer.end_offsets(places)).items():
            while await consumer.position(place) < end:
                for record in (await consumer.getmany(place, timeout_ms=500)).get(place, ()):
                    found += [
                        part for name, value in record.headers for part in (name.encode(), value)
                    ]
    return b"\n".join(found)


async def metrics_of(house: House) -> bytes:
    """What every process exposes."""
    exposed = []
    async with aiohttp.ClientSession() as session:
        for process in house.supervisor.processes:
            async with session.get(f"{process.url}/metrics") as answer:
                exposed.append(await answer.read())
    return b"".join(exposed)


def logs_of(house: House) -> list[bytes]:
    """Every line that the services have written to its end."""
    paths = sorted((house._data_dir / "services").rglob("*.log"))
    whole = (path.read_bytes().rpartition(b"\n")[0] for path in paths)
    return [line for lines in whole for line in lines.splitlines()]


async def test_no_error_path_tells_what_was_said_or_a_key(
    traced: TracedHouse, collector: Collector
) -> None:
    client, canaries = await traced.client("canaries"), Canaries()
    scene = await set_scene(traced, client, canaries)

    problems, parked, _ = await asyncio.gather(
        ask_wrongly(traced, client, scene),
        wrong_records(traced, canaries),
        wrong_answers(traced, client, canaries),
    )
    await stop_running(client, scene)
    ends = await ends_of(traced, client.ledger.tenant_id)
    await traced.come_to_rest()
    last = await client.say(await client.conversation(), "All spans before this one have arrived")
    await trace_of(collector, last, hops=HOPS)

    assert problems.keys() == wrong_requests(scene).keys()
    assert problems.keys() | NOT_DRIVEN.keys() == KINDS.keys()
    assert {asked: got for asked, got in parked.items() if asked != got} == {}
    assert ends == {
        *("provider_refused", "provider_unavailable", "provider_cut", "context_too_large"),
        *("max_tokens", "content_filter", "user"),
    }
    told = {
        "problems": b"\n".join(problems.values()),
        "logs": b"\n".join(logs_of(traced)),
        "spans": b"\n".join(collector.bodies),
        "metrics": await metrics_of(traced),
        "headers of dead letters": await headers_of_dead_letters(traced),
    }
    assert all(told.values())
    assert {where: canaries_in(text) for where, text in told.items()} == {
        where: [] for where in told
    }
    assert told["headers of dead letters"].count(b"original-topic") >= len(parked)
    assert b"llm.request_repeated" in told["logs"]
    assert [
        (where, secret[:8])
        for where, text in told.items()
        for secret in traced.secrets
        if secret.encode() in text
    ] == []


async def test_every_line_of_every_log_fits_the_schema_of_log_lines(traced: TracedHouse) -> None:
    lines = logs_of(traced)
    judge = Draft202012Validator(LOG_LINE)

    assert len(lines) > 50
    faults = {
        fault.message: line.decode()
        for line in lines
        for fault in judge.iter_errors(orjson.loads(line))
    }
    assert faults == {}
    assert {orjson.loads(line)["service"] for line in lines} == {
        "frontend_gateway",
        "ingestion",
        "context_assembly",
        "llm_gateway",
    }
