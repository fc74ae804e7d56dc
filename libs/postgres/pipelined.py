"""Statements of one round trip in one packet each way.

psycopg's own pipeline asks the event loop again for every statement, which costs more than the
statement; here they are handed to libpq together, and the loop is asked once. Statements are
prepared once a connection. Every type is the server's to infer: parameters travel as text (lists of
UUIDs, and what the SQL calls ``%(name)b``, in binary form), so each place that is not a column's or
a function's own type needs a cast.
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

import psycopg
from psycopg import pq
from psycopg.abc import PQGen
from psycopg.abc import Transformer as Loading
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.rows import DictRow
from psycopg.waiting import Ready, Wait

Row: TypeAlias = DictRow
Parameters: TypeAlias = Mapping[str, Any]
Statement: TypeAlias = tuple[str, Parameters]

_PLACEHOLDER = re.compile(r"%\((\w+)\)([sb])|%%")

_ARRAY_HEAD = struct.Struct("!iiIii")
_UUID_OID = 2950
_UUID_LENGTH = b"\0\0\0\x10"

_BAD_RESULTS = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_ABORTED)


@dataclass(slots=True)
class _Prepared:
    """One statement on one connection.

    Attributes:
        names: Parameter of each placeholder, in order; a name used twice is one placeholder.
        binary: Whether that placeholder takes psycopg's binary form.
        loading: Reads its rows; made with the first ones.
    """

    name: bytes
    text: bytes
    names: tuple[str, ...]
    binary: tuple[bool, ...]
    is_ready: bool = False
    columns: tuple[str, ...] = ()
    loading: Loading | None = field(default=None, repr=False)


class PipelinedConnection(psycopg.AsyncConnection[Row]):
    """A connection that runs whole lists of statements in one round trip."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._known: dict[str, _Prepared] = {}

    async def run(self, statements: Sequence[Statement], *, commit: bool) -> list[list[Row]]:
        """Begin a transaction if none is open, run statements in order, and maybe commit.

        Returns:
            Rows of each statement, empty where it returns none.

        Raises:
            psycopg.Error: Of the first statement that failed; none after it ran.
        """
        pgconn = self.pgconn
        async with self.lock:
            begins = pgconn.transaction_status == pq.TransactionStatus.IDLE
            pgconn.enter_pipeline_mode()
            try:
                sent = self._send(statements, begins=begins, commit=commit)
                results = await self.wait(_exchange(pgconn))
            finally:
                if pgconn.status == pq.ConnStatus.OK:
                    pgconn.exit_pipeline_mode()
        return self._rows(sent, results)

    def _send(
        self, statements: Sequence[Statement], *, begins: bool, commit: bool
    ) -> list[tuple[_Prepared | None, bool]]:
        """Hand everything to libpq; for each command its statement, and whether it prepares it."""
        pgconn = self.pgconn
        bound = [(self._statement_of(sql), parameters) for sql, parameters in statements]
        # All parameters before the first command: one that cannot be sent must not send half.
        values = [self._bind(prepared, parameters) for prepared, parameters in bound]
        sent: list[tuple[_Prepared | None, bool]] = []
        if begins:
            pgconn.send_query_params(b"BEGIN", None)
            sent.append((None, False))
        preparing: set[bytes] = set()
        for (prepared, _), (parameters_sent, formats) in zip(bound, values, strict=True):
            if not prepared.is_ready and prepared.name not in preparing:
                pgconn.send_prepare(prepared.name, prepared.text)
                preparing.add(prepared.name)
                sent.append((prepared, True))
            pgconn.send_query_prepared(
                prepared.name, parameters_sent, formats, result_format=pq.Format.BINARY
            )
            sent.append((prepared, False))
        if commit:
            pgconn.send_query_params(b"COMMIT", None)
            sent.append((None, False))
        pgconn.pipeline_sync()
        return sent

    def _statement_of(self, sql: str) -> _Prepared:
        prepared = self._known.get(sql)
        if prepared is None:
            prepared = self._known[sql] = _parsed(sql, b"tw%d" % len(self._known))
        return prepared

    def _bind(
        self, prepared: _Prepared, parameters: Parameters
    ) -> tuple[list[bytes | None], list[int]]:
        values: list[bytes | None] = []
        formats: list[int] = []
        for name, is_binary in zip(prepared.names, prepared.binary, strict=True):
            value = parameters[name]
            if is_binary and value is not None and value != []:
                dumper = Transformer(self).get_dumper(value, PyFormat.BINARY)
                raw = dumper.dump(value)
                values.append(None if raw is None else bytes(raw))
                formats.append(pq.Format.BINARY)
                continue
            uuids = _uuid_array(value)
            values.append(uuids or (None if value is None else self._text(value)))
            formats.append(pq.Format.TEXT if uuids is None else pq.Format.BINARY)
        return values, formats

    def _text(self, value: Any) -> bytes:
        if isinstance(value, list):
            raw = ("{" + ",".join([self._element(one) for one in value]) + "}").encode()
        elif (dump := _SCALARS.get(type(value))) is not None:
            raw = dump(value).encode()
        else:
            raw = self._other(value)
        if b"\0" in raw:
            msg = "a text with U+0000 cannot be stored"
            raise psycopg.DataError(msg)
        return raw

    def _element(self, value: Any) -> str:
        """One element of an array in Postgres' text form."""
        if value is None:
            return "NULL"
        kind = type(value)
        if (dump := _BARE.get(kind)) is not None:
            return dump(value)
        text = dump(value) if (dump := _SCALARS.get(kind)) else self._other(value).decode()
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def _other(self, value: Any) -> bytes:
        """A type that psycopg knows and that is rare here."""
        raw = Transformer(self).get_dumper(value, PyFormat.TEXT).dump(value)
        return b"" if raw is None else bytes(raw)

    def _rows(
        self, sent: Sequence[tuple[_Prepared | None, bool]], results: Sequence[pq.abc.PGresult]
    ) -> list[list[Row]]:
        for (prepared, prepares), result in zip(sent, results, strict=True):
            if prepared is not None and prepares:
                prepared.is_ready = result.status == pq.ExecStatus.COMMAND_OK
        for result in results:
            if result.status in _BAD_RESULTS:
                raise error_from_result(result, encoding=self.info.encoding)
        return [
            self._loaded(prepared, result)
            for (prepared, prepares), result in zip(sent, results, strict=True)
            if prepared is not None and not prepares
        ]

    def _loaded(self, prepared: _Prepared, result: pq.abc.PGresult) -> list[Row]:
        if result.status != pq.ExecStatus.TUPLES_OK or not result.ntuples:
            return []
        # Types of a prepared statement's columns never change, so its loaders are kept.
        is_first = prepared.loading is None
        loading = prepared.loading = prepared.loading or Transformer(self)
        if is_first:
            encoding = self.info.encoding
            prepared.columns = tuple(
                (result.fname(n) or b"").decode(encoding) for n in range(result.nfields)
            )
        loading.set_pgresult(result, set_loaders=is_first, format=pq.Format.BINARY)
        columns = prepared.columns
        return loading.load_rows(
            0, result.ntuples, lambda row: dict(zip(columns, row, strict=True))
        )


def _exchange(pgconn: pq.abc.PGconn) -> PQGen[list[pq.abc.PGresult]]:
    """Send what libpq holds and read one result for each command, to the end of the pipeline."""
    while pgconn.flush():
        ready = yield Wait.RW
        if ready & Ready.R:
            pgconn.consume_input()
    results: list[pq.abc.PGresult] = []
    nothing = 0
    while nothing <= 1:  # one None ends each command; a second one means that nothing will come
        while pgconn.is_busy():
            if (yield Wait.R):
                pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            nothing += 1
            continue
        nothing = 0
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)
    msg = "the connection ended inside a pipeline"
    raise psycopg.OperationalError(msg)


def _uuid_array(value: Any) -> bytes | None:
    """A list of UUIDs in Postgres' binary form, at a third of the cost of its text form.

    None for anything else, nulls included.
    """
    if not isinstance(value, list) or not value or {type(one) for one in value} != {UUID}:
        return None
    head = _ARRAY_HEAD.pack(1, 0, _UUID_OID, len(value), 1)  # one dimension, no null, from 1
    return head + b"".join([_UUID_LENGTH + one.bytes for one in value])


def _parsed(sql: str, name: bytes) -> _Prepared:
    places: dict[tuple[str, str], int] = {}

    def number(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        place = places.setdefault((match[1], match[2]), len(places) + 1)
        return f"${place}"

    text = _PLACEHOLDER.sub(number, sql)
    return _Prepared(
        name=name,
        text=text.encode(),
        names=tuple(parameter for parameter, _ in places),
        binary=tuple(form == "b" for _, form in places),
    )


def _truth(value: bool) -> str:  # noqa: FBT001 -- called through a table
    return "t" if value else "f"


_BARE: Mapping[type, Callable[[Any], str]] = {
    UUID: lambda value: f"{value.int:032x}",  # Postgres needs no hyphens, and they are dear
    int: str,
    float: repr,
    bool: _truth,
    datetime: datetime.isoformat,
}
"""Types whose text needs no quotes inside an array."""

_SCALARS: Mapping[type, Callable[[Any], str]] = {
    **_BARE,
    str: str,
    bytes: lambda value: "\\x" + value.hex(),
}
