"""Pages for readers: the interface's reference and one page per kind of problem, no script."""

from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from services.frontend_gateway.core.problems import KINDS, Kind, not_found
from services.frontend_gateway.http import openapi
from services.frontend_gateway.http.ui import PAGE_HEADERS

CACHE = "public, max-age=300"  # changes with a release only


class Docs:
    """``/openapi.json``, ``/docs`` and ``/problems/…``."""

    def __init__(self) -> None:
        self._json, self._reference = _rendered()

    async def openapi(self, request: Request) -> Response:
        """The document for machines."""
        del request
        headers = {"Cache-Control": CACHE}
        return Response(self._json, media_type="application/json", headers=headers)

    async def reference(self, request: Request) -> Response:
        """The document for people."""
        del request
        return _html(self._reference)

    async def problem(self, request: Request) -> Response:
        """What one kind of problem means and what to do."""
        kind = KINDS.get(request.path_params["slug"])
        if kind is None:
            raise not_found()
        return _html(_page(kind.title, _problem(kind)))

    async def problems(self, request: Request) -> Response:
        """All kinds of problems."""
        del request
        rows = "".join(
            f'<tr><td class="number">{kind.status}</td>'
            f'<td><a href="/problems/{kind.slug}">{kind.slug}</a></td>'
            f"<td>{escape(kind.title)}</td></tr>"
            for kind in KINDS.values()
        )
        return _html(_page("Problems", _table(("Status", "Code", "Meaning"), rows)))


@cache
def _rendered() -> tuple[bytes, str]:
    """The document for machines and the page for people; 30 ms of work, the same in a release."""
    document = openapi.document()
    return orjson.dumps(document), _page("Interface", _reference(document))


def _html(page: str) -> Response:
    return HTMLResponse(page, headers={**PAGE_HEADERS, "Cache-Control": CACHE})


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · Turnwire</title>"
        '<link rel="stylesheet" href="/ui/tokens.css"><link rel="stylesheet" href="/ui/docs.css">'
        '<link rel="icon" href="/ui/mark.svg">'
        f'</head><body><header><a href="/ui/">Turnwire</a><nav><a href="/docs">Interface</a>'
        '<a href="/problems">Problems</a><a href="/openapi.json">openapi.json</a></nav></header>'
        f"<main><h1>{escape(title)}</h1>{body}</main></body></html>"
    )


def _problem(kind: Kind) -> str:
    again = "may succeed later, unchanged" if kind.retryable else "will fail again, unchanged"
    return (
        f"<p>{escape(kind.advice)}</p>"
        f"<dl><dt>Code</dt><dd><code>{kind.slug}</code></dd>"
        f"<dt>HTTP status</dt><dd>{kind.status}</dd>"
        f"<dt>Repeating the request</dt><dd>It {again}.</dd></dl>"
    )


def _reference(document: Mapping[str, Any]) -> str:
    parts = [f"<p>{escape(document['info']['description'])}</p>"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(method, path, operation))
    parts.append("<h2>Bodies</h2>")
    for name, schema in document["components"]["schemas"].items():
        title = escape(name)
        parts.append(f'<details id="{title}"><summary>{title}</summary>{_code(schema)}</details>')
    return "".join(parts)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><td class="number">{status}</td><td>{escape(answer["description"])}</td></tr>'
        for status, answer in operation["responses"].items()
    )
    parameters = "".join(
        f"<li><code>{escape(one['name'])}</code> ({one['in']}): "
        f"{escape(one.get('description', 'An id.'))}</li>"
        for one in operation.get("parameters", ())
    )
    body = ""
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        body = f"<h3>Body</h3>{_code(content.get('example', {}))}"
    return (
        f'<section id="{operation["operationId"]}">'
        f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
        f"<p>{escape(operation['summary'])}.</p>"
        + (f"<ul>{parameters}</ul>" if parameters else "")
        + body
        + _table(("Status", "Meaning"), rows)
        + "</section>"
    )


def _table(titles: Sequence[str], rows: str) -> str:
    head = "".join(f"<th>{title}</th>" for title in titles)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _code(value: Any) -> str:
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    return f"<pre><code>{escape(text)}</code></pre>"
