"""The chat page: static files under a strict policy, and the session that stands for a key."""

import base64
import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from libs.api_keys import hash_api_key, is_api_key
from services.frontend_gateway.core.problems import not_found
from services.frontend_gateway.http.bodies import read_model
from services.frontend_gateway.http.context import Context, json_response
from services.frontend_gateway.http.models import LoginBody
from services.frontend_gateway.http.rights import (
    SESSION_COOKIE,
    check_origin,
    proof_of,
    unauthenticated,
)

TOKEN_BYTES = 32

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
PAGE_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": PAGE_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "X-Frame-Options": "DENY",
}
_PAGES = {"": "chat.html", "login": "login.html", "ops": "ops.html"}
_VENDORED = "vendor"
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".json": "application/json",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    packed: bytes  # by gzip
    media_type: str
    etag: str


@cache
def load_static() -> Mapping[str, _File]:
    """All files of the pages, by name below ``/ui/``; read and packed once, they are small."""
    static = resources.files("services.frontend_gateway").joinpath("static")
    named = [(item.name, item) for item in static.iterdir() if item.is_file()]
    vendored = static.joinpath(_VENDORED)
    named += [(f"{_VENDORED}/{item.name}", item) for item in vendored.iterdir() if item.is_file()]
    return {name: _read(item) for name, item in named}


def _read(item: Traversable) -> _File:
    content = item.read_bytes()
    suffix = "." + item.name.rpartition(".")[2]
    media_type = _TYPES.get(suffix) or mimetypes.guess_type(item.name)[0]
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    packed = gzip.compress(content, mtime=0)
    return _File(content, packed, media_type or "application/octet-stream", etag)


def _takes_gzip(request: Request) -> bool:
    """Whether the client understands it; one that weighs its wishes gets the file as it is."""
    offered = request.headers.get("accept-encoding", "").lower().split(",")
    return "gzip" in {coding.strip() for coding in offered}


def _response(file: _File, request: Request, status: int, headers: Mapping[str, str]) -> Response:
    content, sent = file.content, {**headers, "Vary": "Accept-Encoding"}
    if _takes_gzip(request):
        content = file.packed
        sent["Content-Encoding"] = "gzip"
    return Response(content, status_code=status, headers=sent, media_type=file.media_type)


class Pages:
    """``/ui/``."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._files = load_static()

    async def file(self, request: Request) -> Response:
        """A page or one of its files; revalidated at every load, so an upgrade shows at once."""
        name = request.path_params.get("name", "")
        file = _PAGES.get(name, name)
        if file not in self._files or name.endswith(".html"):
            return self._missing(request)
        return self.page(file, request)

    async def vendored(self, request: Request) -> Response:
        """A file of a library that the pages use; its licence and origin stand beside it."""
        name = f"{_VENDORED}/{request.path_params['name']}"
        return self.page(name, request) if name in self._files else self._missing(request)

    def page(self, name: str, request: Request, *, status: int = 200) -> Response:
        """A page that another route decided to show; one that says no is never kept."""
        file = self._files[name]
        if status != 200:  # noqa: PLR2004 -- RFC 9110
            headers = {**PAGE_HEADERS, "Cache-Control": "no-store"}
            return _response(file, request, status, headers)
        # Weak, since it names the content in whatever way it is packed.
        headers = {**PAGE_HEADERS, "ETag": f"W/{file.etag}", "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") in (file.etag, headers["ETag"]):
            return Response(status_code=304, headers={**headers, "Vary": "Accept-Encoding"})
        return _response(file, request, 200, headers)

    def _missing(self, request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return self.page("missing.html", request, status=404)
        raise not_found()

    async def home(self, request: Request) -> Response:
        """The root leads to the page."""
        del request
        return RedirectResponse("/ui/", status_code=307)

    async def login(self, request: Request) -> Response:
        """Exchange an API key for a cookie that no script can read."""
        context = self._context
        check_origin(request)
        body = await read_model(request, LoginBody)
        key = body.key.strip()
        caller = None
        if is_api_key(key):
            caller = await context.doorkeeper.caller(("key", hash_api_key(key)))
        if caller is None:
            raise unauthenticated()
        token = base64.urlsafe_b64encode(context.random_bytes(TOKEN_BYTES)).decode().rstrip("=")
        await context.store.open_session(
            hash_api_key(token), caller.key_id, lifetime_s=context.session_lifetime_s
        )
        response = json_response({"scopes": sorted(caller.scopes)})
        response.set_cookie(
            SESSION_COOKIE,
            token,
            max_age=context.session_lifetime_s,
            path="/",
            secure=request.headers.get("origin", "").startswith("https:"),  # checked above
            httponly=True,
            samesite="strict",
        )
        return response

    async def logout(self, request: Request) -> Response:
        """End the session, here and in the browser."""
        check_origin(request)
        proof = proof_of(request)
        if proof is not None and proof[0] == "session":
            await self._context.store.close_session(proof[1])
            self._context.doorkeeper.forget(proof)
        response = Response(status_code=204)
        response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
        return response
