"""The HTTP server: uvicorn, without its signal handlers and with a way to drop a connection."""

import contextlib
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.frontend_gateway.app import Gateway
from services.frontend_gateway.http.streams import ABORT

KEEP_ALIVE_S = 75  # above the idle time of common proxies, so that they close first
GRACE_S = 5  # for ordinary requests, after the streams were closed


class AbortableProtocol(HttpToolsProtocol):
    """Lets a stream drop its connection at once: a client that never reads keeps no buffer."""

    def on_message_begin(self) -> None:
        """Put the means into the new request's scope."""
        super().on_message_begin()
        self.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]


class Server(uvicorn.Server):
    """Uvicorn without its own signal handlers: streams are drained first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield


def server_of(gateway: Gateway, *, host: str, port: int, drain_s: float = 0) -> Server:
    """The HTTP server of a gateway."""
    config = uvicorn.Config(
        gateway.asgi,
        host=host,
        port=port,
        loop="uvloop",
        http=AbortableProtocol,
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=round(drain_s) + GRACE_S,
    )
    return Server(config)
