"""Who is asking: an API key in a header or a browser session in a cookie, looked up and cached."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Literal

from starlette.requests import HTTPConnection

from libs.api_keys import hash_api_key, is_api_key
from libs.clock import Clock
from services.frontend_gateway.core.problems import Problem
from services.frontend_gateway.http.edge import asked_url, base_url
from services.frontend_gateway.ports import Caller, Proof, Rights

CACHED_S = 5.0  # a revoked key works no longer than this
MAX_CACHED = 10_000  # about 3 MB; above it the oldest are looked up again
SESSION_COOKIE = "turnwire_session"
MAX_COOKIE_CHARACTERS = 100

Scope = Literal["chat", "read", "admin", "captures"]
# What a scope allows beside itself: whoever may ask may read the answer. Captured payloads are
# whole prompts, so nothing but their own scope opens them.
_GRANTED_BY: dict[Scope, frozenset[str]] = {
    "read": frozenset({"read", "chat", "admin"}),
    "chat": frozenset({"chat", "admin"}),
    "admin": frozenset({"admin"}),
    "captures": frozenset({"captures"}),
}
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Doorkeeper:
    """Turns proofs into callers; answers from memory for at most ``CACHED_S`` seconds."""

    def __init__(self, rights: Rights, clock: Clock) -> None:
        self._rights = rights
        self._clock = clock
        self._known: OrderedDict[Proof, tuple[float, Caller | None]] = OrderedDict()

    @property
    def remembered(self) -> int:
        """Proofs in memory, wrong ones among them."""
        return len(self._known)

    async def admit(self, connection: HTTPConnection, scope: Scope) -> tuple[Caller, Proof]:
        """The caller of a request, who has that scope.

        Raises:
            Problem: ``unauthenticated`` without saying what was wrong; ``forbidden`` where the
                scope is missing, or a cookie came with an unsafe method from another origin.
        """
        proof = proof_of(connection)
        caller = await self.caller(proof) if proof is not None else None
        if proof is None or caller is None:
            raise unauthenticated()
        if proof[0] == "session":
            check_origin(connection)
        if caller.scopes.isdisjoint(_GRANTED_BY[scope]):
            detail = f"The key lacks the scope {scope}. Make one that has it."
            raise Problem("forbidden", detail)
        return caller, proof

    async def caller(self, proof: Proof) -> Caller | None:
        """Whom a proof stands for now, give or take ``CACHED_S`` seconds."""
        now = self._clock.monotonic()
        known = self._known.get(proof)
        if known is not None and now - known[0] < CACHED_S:
            return known[1]
        kind, hash_ = proof
        look_up: Callable[[bytes], Awaitable[Caller | None]] = (
            self._rights.caller_of_key if kind == "key" else self._rights.caller_of_session
        )
        caller = await look_up(hash_)
        self._known[proof] = (now, caller)
        self._known.move_to_end(proof)
        while len(self._known) > MAX_CACHED:
            self._known.popitem(last=False)
        return caller

    def forget(self, proof: Proof) -> None:
        """Look this proof up again at its next use."""
        self._known.pop(proof, None)


def proof_of(connection: HTTPConnection) -> Proof | None:
    """What a request brings along; a key in the header wins over a cookie."""
    authorization = connection.headers.get("authorization")
    if authorization is not None:
        kind, _, key = authorization.partition(" ")
        key = key.strip()
        is_key = kind.lower() == "bearer" and is_api_key(key)
        return ("key", hash_api_key(key)) if is_key else None
    token = connection.cookies.get(SESSION_COOKIE)
    if not token or len(token) > MAX_COOKIE_CHARACTERS:
        return None
    return ("session", hash_api_key(token))


def check_origin(connection: HTTPConnection) -> None:
    """Refuse an unsafe method that another site's page made the browser send.

    Behind a proxy that ends TLS the pages' origin is the public address, not the one that this
    server hears.

    Raises:
        Problem: ``forbidden``.
    """
    if connection.scope["method"] in _SAFE_METHODS:
        return
    if connection.headers.get("origin") not in (base_url(connection), asked_url(connection)):
        detail = "A browser session works from this server's own pages only; use an API key."
        raise Problem("forbidden", detail)


def unauthenticated() -> Problem:
    """The one answer to a missing, malformed, wrong or revoked key."""
    return Problem(
        "unauthenticated",
        "There is no valid API key with this request. Send Authorization: Bearer with your key.",
        headers={"WWW-Authenticate": 'Bearer realm="turnwire"'},
    )
