"""Reads request bodies: bounded while reading, any JSON text, errors that name the field."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from libs.text import storable
from services.frontend_gateway.core.names import nearest
from services.frontend_gateway.core.problems import FieldError, Problem

MAX_BODY_BYTES = 1024 * 1024  # four times the largest text, for escapes and the other fields
MAX_TEXT_BYTES = 256 * 1024
MAX_DROPPED_BYTES = 4 * MAX_BODY_BYTES  # of a body that is refused; see _drop
DROP_S = 2.0  # and for so long; a slow sender may lose the answer
MAX_ERRORS = 10  # more would not help anybody to correct a request

M = TypeVar("M", bound=BaseModel)


async def read_body(request: Request) -> bytes:
    """The whole body.

    Raises:
        Problem: ``payload-too-large`` as soon as the limit is passed, without keeping more.
        ClientDisconnect: The client is gone.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > MAX_BODY_BYTES:
        if "expect" not in request.headers:  # who asks first has sent nothing yet
            await _drop(request.stream())
        raise _too_large()
    chunks: list[bytes] = []
    size_bytes = 0
    body = request.stream()
    async for chunk in body:
        size_bytes += len(chunk)
        if size_bytes > MAX_BODY_BYTES:
            await _drop(body)
            raise _too_large()
        chunks.append(chunk)
    return b"".join(chunks)


async def _drop(body: AsyncIterator[bytes]) -> None:
    """Read on for a while and keep nothing.

    A connection that is closed while its peer still sends is reset, and the answer is lost with it.
    """
    dropped_bytes = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DROP_S):
            async for chunk in body:
                dropped_bytes += len(chunk)
                if dropped_bytes > MAX_DROPPED_BYTES:
                    return


async def read_model(request: Request, model: type[M]) -> M:
    """The body as ``model``, with every text made storable first.

    Raises:
        Problem: ``unsupported-media``, ``payload-too-large`` or ``validation-error``.
    """
    return (await read_counted(request, model))[0]


async def read_counted(request: Request, model: type[M]) -> tuple[M, int]:
    """As ``read_model``, and how many U+0000 were removed from the texts of the body.

    Raises:
        Problem: As ``read_model``.
    """
    _check_media(request)
    raw = parse(await read_body(request))
    try:
        return model.model_validate(_storable(raw)), _nul_count(raw)
    except ValidationError as error:
        raise _invalid(model, error) from None


def parse(body: bytes) -> Any:
    """JSON in UTF-8 (RFC 8259), where half of a surrogate pair is still a text.

    Raises:
        Problem: ``validation-error``.
    """
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise _not_json(f"it is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _not_json(f"{error.msg} at {where}") from None
    except RecursionError:
        raise _not_json("it is nested too deeply") from None
    except ValueError:
        raise _not_json("it holds a number that is not one, or is too long") from None


def check_text(content: str, where: str) -> None:
    """Whether a message's text may be sent on.

    Raises:
        Problem: ``payload-too-large``, or ``validation-error`` where nothing but space is left.
    """
    size_bytes = len(content.encode())
    if size_bytes > MAX_TEXT_BYTES:
        detail = (
            f"The text has {size_bytes} bytes in UTF-8, allowed are {MAX_TEXT_BYTES}. Shorten it, "
            "or send it as several messages."
        )
        raise Problem("payload-too-large", detail)
    if not content.strip():
        error = FieldError(where, "has no text; send at least one visible character")
        raise Problem("validation-error", "The message has no text.", errors=(error,))


def _check_media(request: Request) -> None:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        said = "names another media type" if media else "is missing"
        detail = f"The header Content-Type {said}. Send application/json."
        raise Problem("unsupported-media", detail)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem("unsupported-media", "Compressed bodies are not taken. Send it plain.")


def _no_constant(name: str) -> Any:
    msg = f"{name} is no JSON number"
    raise ValueError(msg)


def _storable(value: Any) -> Any:
    """A copy in which every text, names included, can be stored and encoded."""
    if isinstance(value, str):
        return storable(value).text
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {storable(name).text: _storable(item) for name, item in value.items()}
    return value


def _nul_count(value: Any) -> int:
    if isinstance(value, str):
        return value.count("\0")
    if isinstance(value, list):
        return sum(map(_nul_count, value))
    return sum(map(_nul_count, value.values())) if isinstance(value, dict) else 0


def _invalid(model: type[BaseModel], error: ValidationError) -> Problem:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    errors = tuple(_field_error(model, one) for one in found[:MAX_ERRORS])
    first = errors[0]
    hint = f" Did you mean {first.nearest}?" if first.nearest else ""
    detail = f"{first.where or 'The body'}: {first.message}.{hint}"
    return Problem("validation-error", detail, errors=errors)


def _field_error(model: type[BaseModel], found: Mapping[str, Any]) -> FieldError:
    path = [str(part) for part in found["loc"]]
    where = "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in path)[:200]
    if found["type"] == "extra_forbidden":
        return FieldError(where, "unknown field", nearest(path[-1], _known_names(model, path[:-1])))
    message = str(found["msg"])
    return FieldError(where, message[:1].lower() + message[1:])


def _known_names(model: type[BaseModel], path: list[str]) -> list[str]:
    """Names of the fields of the model that stands at ``path``."""
    current: type[BaseModel] | None = model
    for name in path:
        field = current.model_fields.get(name) if current else None
        current = _inner_model(field.annotation) if field else None
    return list(current.model_fields) if current else []


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    candidates = [annotation, *getattr(annotation, "__args__", ())]
    for candidate in candidates:
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _too_large() -> Problem:
    detail = f"The body has more than {MAX_BODY_BYTES} bytes. Nothing of it was kept."
    return Problem("payload-too-large", detail, headers={"Connection": "close"})


def _not_json(why: str) -> Problem:
    error = FieldError("", why)
    return Problem("validation-error", f"The body is not JSON: {why}.", errors=(error,))
