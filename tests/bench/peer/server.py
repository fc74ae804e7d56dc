"""A chat backend of LangGraph's library behind FastAPI, with its Postgres saver.

It runs in an environment of its own (``requirements.txt``) and imports nothing of Turnwire. What a
team would write from the libraries' own pages: one graph of one node that calls the model, the
history kept by the saver under a thread's id, tokens streamed as server-sent events as they come.
``PEER_CLIENT`` chooses how the node calls the model: ``chat_openai`` or ``httpx``.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any, Protocol, cast

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from langchain_core.messages import AIMessage, AIMessageChunk, convert_to_openai_messages
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel, SecretStr

MODEL = "scripted"
POOL_SIZE = 16
GRAPHS = 8
"""Each with a saver of its own over the one pool: a saver uses one connection at a time."""

Pool = AsyncConnectionPool[AsyncConnection[DictRow]]
Graph = CompiledStateGraph[Any, Any, Any, Any]


class Said(BaseModel):
    """The body of a message."""

    content: str


def make_pool() -> Pool:
    """Connections as the saver wants them."""
    return AsyncConnectionPool(
        os.environ["PEER_DATABASE_URL"],
        min_size=4,
        max_size=POOL_SIZE,
        open=False,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
    )


class Node(Protocol):
    """Answers the thread's last message."""

    async def __call__(self, state: MessagesState) -> dict[str, Any]:
        """What the state gains."""
        ...


def chat_openai_node() -> Node:
    """Calls the model through langchain-openai, as the library's own pages do."""
    model = ChatOpenAI(
        model=MODEL,
        base_url=os.environ["PEER_LLM_BASE_URL"],
        api_key=SecretStr("scripted"),
        streaming=True,
        stream_usage=True,
        max_retries=2,
    )

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return answer


def httpx_node(client: httpx.AsyncClient) -> Node:
    """Calls the model over bare HTTP, as a team does that has looked at its profile."""

    async def answer(state: MessagesState) -> dict[str, Any]:
        write = get_stream_writer()
        asked = {
            "model": MODEL,
            "messages": convert_to_openai_messages(state["messages"]),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        pieces: list[str] = []
        async with client.stream("POST", "/chat/completions", json=asked) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        if text := choice["delta"].get("content"):
                            pieces.append(text)
                            write(text)
        return {"messages": [AIMessage("".join(pieces))]}

    return answer


def make_graph(pool: Pool, node: Node) -> Graph:
    """One node that answers with the whole thread as history."""
    building = StateGraph(MessagesState)
    building.add_node("answer", node)
    building.add_edge(START, "answer")
    building.add_edge("answer", END)
    return building.compile(checkpointer=AsyncPostgresSaver(pool))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the pool and build the graphs, in each worker process."""
    async with (
        make_pool() as pool,
        httpx.AsyncClient(base_url=os.environ["PEER_LLM_BASE_URL"], timeout=60) as client,
    ):
        app.state.is_bare = os.environ["PEER_CLIENT"] == "httpx"
        node = httpx_node(client) if app.state.is_bare else chat_openai_node()
        app.state.graphs = cycle([make_graph(pool, node) for _ in range(GRAPHS)])
        yield


async def texts(graph: Graph, thread_id: str, content: str, *, is_bare: bool) -> AsyncIterator[str]:
    """The answer's tokens while they come."""
    asked = {"messages": [{"role": "user", "content": content}]}
    config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
    if is_bare:
        async for text in graph.astream(asked, config, stream_mode="custom"):
            yield str(text)
        return
    streaming = graph.astream(asked, config, stream_mode="messages")
    async for chunk, _ in cast("AsyncIterator[tuple[AIMessageChunk, object]]", streaming):
        if chunk.content:
            yield str(chunk.content)


async def events(tokens: AsyncIterator[str]) -> AsyncIterator[str]:
    """Each token as an event, and the end."""
    async for text in tokens:
        yield f"data: {json.dumps({'text': text})}\n\n"
    yield "event: done\ndata: {}\n\n"


def make_app() -> FastAPI:
    """For ``uvicorn --factory``."""
    app = FastAPI(lifespan=lifespan)

    @app.post("/threads/{thread_id}/messages")
    async def post_message(thread_id: str, said: Said, request: Request) -> StreamingResponse:
        state = request.app.state
        tokens = texts(next(state.graphs), thread_id, said.content, is_bare=state.is_bare)
        return StreamingResponse(events(tokens), media_type="text/event-stream")

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    return app


async def set_up() -> None:
    """Make the saver's tables, once, before the workers start."""
    async with make_pool() as pool:
        await AsyncPostgresSaver(pool).setup()


if __name__ == "__main__":
    asyncio.run(set_up())
