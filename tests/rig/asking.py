"""How what stands in a ledger is asked for over HTTP, and which answers to it are promised."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from libs.ids import message_id
from tests.rig.ledger import Act, ActKind, Ledger, Post, Reply

ANSWERS: Mapping[ActKind, frozenset[int]] = {
    "cancel": frozenset({202, 404, 409}),
    "delete_message": frozenset({204, 404, 409}),
    "delete": frozenset({204, 404}),
    "restore": frozenset({200, 404, 410}),
}
"""Every answer that an act may get for good; a repeat of one that was lost finds nothing."""

REFUSALS: Mapping[str, frozenset[str]] = {
    "reject": frozenset({"turn-in-progress"}),
    "queue": frozenset({"quota-exceeded"}),
    "edit": frozenset({"not-editable"}),
    "continue": frozenset({"not-continuable"}),
}
"""Slugs that refuse a post for good, by its ``wish``: what it asked for is promised to be so."""

GONE = frozenset({404, 410})
"""How the stream of a deleted conversation, or of a deleted answer, is refused."""


def wanted(post: Post) -> tuple[str, str, dict[str, Any]]:
    """How an answer is asked for: method, path, body."""
    body: dict[str, Any] = {} if post.policy is None else {"policy": post.policy}
    if post.model is not None:
        body["model"] = post.model
    messages = f"/v1/conversations/{post.conversation_id}/messages"
    match post.kind:
        case "message":
            return "POST", messages, {"content": post.text, **body}
        case "edit":
            return "PATCH", f"{messages}/{post.target}", {"content": post.text, **body}
        case _:
            return "POST", f"/v1/turns/{post.target}/{post.kind}", body


def wish(post: Post) -> str:
    """What a post asks for beside a plain answer, in one word: its kind, else its policy."""
    return post.kind if post.kind != "message" or post.policy is None else post.policy


def way(act: Act) -> tuple[str, str]:
    """How something is done: method, path."""
    conversation = f"/v1/conversations/{act.conversation_id}"
    ways: dict[ActKind, tuple[str, str]] = {
        "cancel": ("POST", f"/v1/turns/{act.target}/cancel"),
        "delete_message": ("DELETE", f"{conversation}/messages/{act.target}"),
        "delete": ("DELETE", conversation),
        "restore": ("POST", f"{conversation}/restore"),
    }
    return ways[act.kind]


def slug_of(reply: Reply) -> str:
    """The slug of a problem document; empty where the answer is none."""
    return str(reply.body.get("type", "")).rpartition("/")[2]


def is_refused(post: Post, reply: Reply) -> bool:
    """Whether an answer refuses a post for good, as was promised for what it asks for."""
    wishes = {post.kind, post.policy or ""}
    return any(slug_of(reply) in REFUSALS.get(one, ()) for one in wishes)


@dataclass(frozen=True, slots=True)
class Look:
    """A request whose answer shows whether something that was deleted still shows.

    Attributes:
        where: What is said when it does.
        names: What the page must not name; None where any 200 shows it.
    """

    where: str
    method: str
    path: str
    names: str | None = None

    def is_shown_by(self, reply: Reply) -> bool:
        """Whether the answer shows it; one that failed shows nothing."""
        if reply.status != 200:
            return False
        return self.names is None or self.names in {one["id"] for one in reply.body["data"]}


def looks(act: Act, ledger: Ledger) -> list[Look]:
    """Where a client looks after a deletion that it was told is done."""
    conversation = f"/v1/conversations/{act.conversation_id}"
    if act.kind == "delete":
        return [Look("its own page", "GET", conversation)]
    if act.kind != "delete_message":
        return []
    newest = f"{conversation}/messages?order=desc"
    found = [Look("the page of messages", "GET", newest, names=str(act.target))]
    for post in ledger.posts:
        if post.turn_id and message_id(post.turn_id, "assistant") == act.target:
            found.append(Look("its stream", "HEAD", f"/v1/turns/{post.turn_id}/events"))
    return found
