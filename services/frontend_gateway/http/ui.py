"""The chat page: static files under a strict policy, and the session that stands for a key."""

import base64
import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

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
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": PAGE_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "X-Frame-Options": "DENY",
}
_PAGES = {"": "chat.html", "login": "login.html"}
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str


def load_static() -> Mapping[str, _File]:
    """All files of the page, by name; read once, they are small."""
    files: dict[str, _File] = {}
    for item in resources.files("services.frontend_gateway").joinpath("static").iterdir():
        if not item.is_file():
            continue
        content = item.read_bytes()
        suffix = "." + item.name.rpartition(".")[2]
        media_type = _TYPES.get(suffix) or mimetypes.guess_type(item.name)[0]
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        files[item.name] = _File(content, media_type or "application/octet-stream", etag)
    return files


class Pages:
    """``/ui/``."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._files = load_static()

    async def file(self, request: Request) -> Response:
        """A page or one of its files; revalidated at every load, so an upgrade shows at once."""
        name = request.path_params.get("name", "")
        file = self._files.get(_PAGES.get(name, name))
        if file is None or (name.endswith(".html")):
            raise not_found()
        headers = {**PAGE_HEADERS, "ETag": file.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.media_type)

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
            secure=request.url.scheme == "https",
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
