"""What must hold of every plan and every answer, as assertions for your own tests.

A plan is given as ``Client.plan`` returns it, as the JSON document of ``GET /v1/turns/{id}/plan``,
or as one document of the published schema ``prompt_plan.v1``. Every assertion says which block or
message breaks it, never a text.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

from turnwire.models import TERMINAL, Message, TurnPlan

Plan: TypeAlias = TurnPlan | Mapping[str, Any]
Id: TypeAlias = UUID | str

_OF_ONE_RUN = frozenset({"step_id"})
"""Fields of a plan that name the run; all else follows from what is stored."""


def assert_current_turn_once(plan: Plan, *, message_id: Id | None = None) -> None:
    """The message that is answered stands in the prompt once: last, but for a continued answer.

    Args:
        message_id: Of the message, if you know it.

    Raises:
        AssertionError: It is missing, stands twice, is another one, or something follows it.
    """
    for document in plans_of(plan):
        blocks = document["blocks"]
        places = [n for n, block in enumerate(blocks) if block["kind"] == "current"]
        _require(len(places) == 1, f"there are {len(places)} current blocks, not one")
        place = places[0]
        current = str(blocks[place]["id"])
        twins = [n for n, block in enumerate(blocks) if str(block["id"]) == current]
        _require(len(twins) == 1, f"message {current} is current and stands also in blocks {twins}")
        if message_id is not None:
            wanted = str(message_id)
            _require(current == wanted, f"the current message is {current}, not {wanted}")
        behind = [block["kind"] for block in blocks[place + 1 :]]
        others = [kind for kind in behind if kind != "continuation"]
        _require(not others, f"behind the current message stand {others}")


def assert_superseded_excluded(plan: Plan, superseded: Iterable[Id] = ()) -> None:
    """Nothing that was replaced or deleted is shown.

    Args:
        superseded: Ids of messages that were edited away or deleted.

    Raises:
        AssertionError: One of them, or a block that the plan itself calls left out, is shown.
    """
    wanted = {str(one) for one in superseded}
    for document in plans_of(plan):
        out = {str(gone["id"]): gone["reason"] for gone in document["excluded"]}
        for n, block in enumerate(document["blocks"]):
            shown = str(block["id"])
            _require(shown not in wanted, f"block {n} shows {shown}, which was replaced")
            _require(
                shown not in out, f"block {n} shows {shown}, which was left out ({out.get(shown)})"
            )


def assert_within_budget(plan: Plan) -> None:
    """The prompt keeps to its budget, each section to its own, and the numbers add up.

    Raises:
        AssertionError: Names the number that does not fit.
    """
    for document in plans_of(plan):
        budget, blocks = document["budget"], document["blocks"]
        total = sum(block["tokens"] for block in blocks)
        _require(total == budget["used"], f"the blocks have {total} tokens, not {budget['used']}")
        _require(
            total <= budget["tokens"], f"{total} tokens are over the budget of {budget['tokens']}"
        )
        needed = budget["tokens"] + budget["reply_reserve"]
        _require(
            needed <= budget["window"],
            f"budget and reply need {needed} tokens of a window of {budget['window']}",
        )
        offset = 0
        for n, block in enumerate(blocks):
            _require(
                block["token_offset"] == offset,
                f"block {n} begins at token {block['token_offset']}, not at {offset}",
            )
            offset += block["tokens"]
        for section in budget["sections"]:
            _check_section(section)


def assert_deterministic(plans: Sequence[Plan]) -> None:
    """Plans made from the same rows are the same: same blocks, same bytes.

    Args:
        plans: At least two of one step.

    Raises:
        AssertionError: Names the first field that differs.
    """
    found = [plans_of(plan) for plan in plans]
    _require(len(found) > 1, "one plan cannot differ from itself; give at least two")
    first = found[0]
    for n, other in enumerate(found[1:], start=2):
        _require(
            len(other) == len(first), f"plan {n} has {len(other)} steps, the first {len(first)}"
        )
        for ours, theirs in zip(first, other, strict=True):
            names = sorted({*ours, *theirs} - _OF_ONE_RUN)
            differing = [name for name in names if ours.get(name) != theirs.get(name)]
            _require(not differing, f"plan {n} differs from the first in {differing}")


def assert_one_answer(messages: Iterable[Message | Mapping[str, Any]], turn_id: Id) -> None:
    """A turn has exactly one answer, and it is final.

    Args:
        messages: Of the turn's branch, as ``Client.messages`` gives them.

    Raises:
        AssertionError: There is none, there are several, or it is still being written.
    """
    rows = [_row(message) for message in messages]
    repeated = [id_ for id_, times in Counter(id_ for id_, *_ in rows).items() if times > 1]
    _require(not repeated, f"messages are listed twice: {repeated}")
    answers = [
        (id_, status)
        for id_, turn, role, status in rows
        if turn == str(turn_id) and role == "assistant"
    ]
    _require(len(answers) == 1, f"turn {turn_id} has {len(answers)} answers, not one")
    id_, status = answers[0]
    _require(status in TERMINAL, f"answer {id_} is {status}, which is no final state")


def plans_of(plan: Plan) -> list[Mapping[str, Any]]:
    """The plan documents of a turn's steps, in their order.

    Raises:
        AssertionError: There is none.
    """
    if isinstance(plan, TurnPlan):
        found = [step.plan for step in plan.steps]
    elif "steps" in plan:
        found = [step["plan"] for step in plan["steps"]]
    else:
        found = [plan]
    _require(bool(found), "the turn has no plan")
    return found


def _check_section(section: Mapping[str, Any]) -> None:
    name, used = section["section"], section["used"]
    before, ceiling = section["before"], section.get("ceiling")
    _require(used <= before, f"section {name} uses {used} tokens of {before} that were open")
    _require(section["after"] == before - used, f"section {name} leaves {section['after']} tokens")
    _require(ceiling is None or used <= ceiling, f"section {name} uses {used} tokens of {ceiling}")


def _row(message: Message | Mapping[str, Any]) -> tuple[str, str, str, str]:
    if isinstance(message, Message):
        return str(message.id), str(message.turn_id), message.role, message.status
    names = ("id", "turn_id", "role", "status")
    id_, turn, role, status = (str(message[name]) for name in names)
    return id_, turn, role, status


def _require(holds: bool, text: str) -> None:  # noqa: FBT001 -- reads like assert
    if not holds:
        raise AssertionError(text)
