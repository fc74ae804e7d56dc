"""What operators see, as lines for people."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.ops.screen import Screen, duration, harmless, table

Document = Mapping[str, Any]
LISTED = 40  # rows of a table; --json has all


def listed(rows: Sequence[Document], what: str) -> str:
    """How many there are, and how many of them a table shows."""
    more = f", of which {LISTED} are shown (--json has all)" if len(rows) > LISTED else ""
    return f"{len(rows):,} {what}{more}"


def overview_lines(screen: Screen, told: Document) -> Iterator[str]:
    """The deployment in figures: the answer first, then a table of services, then what is open."""
    services = told["services"]
    well = sum(1 for one in services if one["health"] in ("ready", "degraded"))
    yield f"{well} of {len(services)} services of the deployment work."
    yield ""
    rows = [
        (
            one["service"],
            screen.state(one["health"]),
            str(one["running"]),
            str(one["silent"]),
            "" if one["lag"] is None else f"{one['lag']:,}",
            ", ".join(one["versions"]),
        )
        for one in services
    ]
    columns = ("service", "health", "running", "silent", "lag", "version")
    yield from table(columns, rows, numbers=("running", "silent", "lag"))
    yield ""
    pending = sum(row["pending"] for row in told["outbox"])
    oldest = max((row["oldest_s"] for row in told["outbox"]), default=0.0)
    letters = sum(row["letters"] for row in told["dead_letters"])
    leases = told["leases"]
    open_turns = [row for row in told["turns"] if row["is_open"]]
    yield f"  outbox        {pending:,} wait{_old(pending, oldest)}"
    yield f"  dead letters  {letters:,}"
    yield f"  leases        {leases['held']} held, {leases['run_out']} run out"
    yield f"  open turns    {sum(row['turns'] for row in open_turns):,}"
    for row in told["turns"]:
        state = screen.state(row["status"])
        reason = f" ({row['reason']})" if row["reason"] else ""
        age = row["oldest_s"] if row["is_open"] else row["newest_s"]
        which = "oldest" if row["is_open"] else "newest"
        yield f"    {row['turns']:>6,}  {state}{reason}, the {which} {duration(max(0.0, age))} ago"
    if letters:
        yield ""
        yield "Look at the dead letters with `turnwire dlq ls`."


def _old(number: int, seconds: float) -> str:
    return f", the oldest for {duration(seconds)}" if number else ""


def story_lines(screen: Screen, told: Document) -> Iterator[str]:
    """One turn: what became of it, why, and one line an event with its service in the margin."""
    turn = told["turn"]
    yield f"Turn {turn['turn_id']}: {told['sentence']}"
    yield told["why"]
    yield ""
    for name in ("conversation_id", "request_id", "key", "tenant_id", "trace_id"):
        if turn.get(name):
            yield f"  {name.removesuffix('_id'):<14}{harmless(str(turn[name]))}"
    yield ""
    rows = [
        (
            line["at"][11:23],
            "" if line["gap_s"] is None else f"+{duration(line['gap_s'])}",
            line["service"],
            line["what"],
            harmless(line["detail"]),
        )
        for line in told["lines"]
    ]
    yield from table(("time", "after", "service", "what", "detail"), rows, numbers=("after",))
    yield ""
    yield told["next_step"]
    if "reap" in told["may"]:
        yield f"To end it now with what was shown: `turnwire turns reap {turn['turn_id']}`."
    elif "end" in told["may"]:
        yield f"To end it now: `turnwire turns end {turn['turn_id']}`."
    del screen


def found_lines(screen: Screen, told: Document, text: str) -> Iterator[str]:
    """What an id or a key means."""
    turns = told["turns"]
    if told["dead_letter"] is not None:
        yield f"It is a dead letter; see `turnwire dlq show {told['dead_letter']['id']}`."
    if told["request"] is not None:
        request = told["request"]
        code = f" ({request['code']})" if request["code"] else ""
        yield f"It is a request that was {request['outcome']}{code} at {request['decided_at']}."
    if not turns:
        if told["dead_letter"] is None and told["request"] is None:
            yield f"Nothing has the name {harmless(text)}."
            yield "Requests are remembered for a day; turns until their conversation is purged."
        return
    yield f"{listed(turns, 'turns')}."
    yield ""
    yield from turn_table(screen, turns)
    yield ""
    yield f"Read one with `turnwire turns events {turns[0]['turn_id']}`."


def turn_table(screen: Screen, turns: Sequence[Document]) -> list[str]:
    """Turns as rows."""
    rows = [
        (
            one["turn_id"],
            screen.state(one["status"]),
            one["reason"] or "",
            one["kind"],
            one["created_at"],
            one["ended_at"] or "",
        )
        for one in turns[:LISTED]
    ]
    return table(("turn", "state", "reason", "kind", "accepted", "ended"), rows)


def letters_lines(letters: Sequence[Document]) -> Iterator[str]:
    """Dead letters, the newest first."""
    if not letters:
        yield "There are no dead letters."
        return
    yield f"{listed(letters, 'dead letters')}, the newest first."
    yield ""
    rows = [
        (
            one["id"],
            one["service"],
            one["topic"],
            f"{one['partition']}/{one['offset']}",
            harmless(one["event_type"] or ""),
            one["reason"],
            one["at"],
        )
        for one in letters[:LISTED]
    ]
    yield from table(("id", "service", "topic", "place", "event", "reason", "at"), rows)
    yield ""
    yield f"Look at one with `turnwire dlq show {letters[0]['id']}`."


def letter_lines(letter: Document) -> Iterator[str]:
    """One dead letter: why it is here, and where it stood."""
    place = f"record {letter['offset']} of {letter['topic']}, partition {letter['partition']}"
    yield f"{letter['service']} set aside {place}: {letter['reason']}."
    yield harmless(letter["error"])
    yield ""
    for name in (
        "id",
        "consumer",
        "conversation_id",
        "tenant_id",
        "event_id",
        "event_type",
        "attempts",
        "value_bytes",
        "value_sha256",
        "headers",
        "at",
    ):
        if letter[name] is not None:
            yield f"  {name:<16}{harmless(str(letter[name]))}"
    yield ""
    yield (
        "A re-drive is under way."
        if letter["is_asked"]
        else f"Handle it again with `turnwire dlq redrive {letter['id']} --dry-run`, then without."
    )


def outbox_lines(status: Sequence[Document], dead: Sequence[Document]) -> Iterator[str]:
    """What waits for the broker in each service."""
    pending = sum(row["pending"] for row in status)
    yield f"{pending:,} events wait for the broker." if pending else "No event waits."
    yield ""
    rows = [
        (
            row["service"],
            f"{row['pending']:,}",
            duration(row["oldest_s"]) if row["pending"] else "",
            str(row["dead"]),
        )
        for row in status
    ]
    yield from table(
        ("service", "waiting", "oldest", "refused"), rows, numbers=("waiting", "oldest", "refused")
    )
    for row in dead[:LISTED]:
        yield f"  {row['service']} {row['type']} {row['event_id']}: {harmless(row['error'])}"
    if pending:
        yield ""
        yield "If they get older, Kafka is away or their service is: see `turnwire status`."


def act_lines(told: Document) -> Iterator[str]:
    """What was done, or would be."""
    yield ("Would do this, and did nothing: " if told["dry_run"] else "Done: ") + told["effect"]
