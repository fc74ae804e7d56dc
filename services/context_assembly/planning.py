"""Makes the step of a started turn from the rows that were read: a plan, or a refusal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import orjson

from libs import ids
from libs.outbox import outbox_message
from schemas.envelope import Data, Event
from schemas.registry import CONTEXT_EVENTS
from schemas.steps import StepPlannedV1, StepRefusedV1
from services.context_assembly.core.budget import sampling_of
from services.context_assembly.core.document import to_document
from services.context_assembly.core.invariants import (
    Evidence,
    Invariant,
    InvariantBroken,
    check,
    check_texts,
)
from services.context_assembly.core.payload import HistoryChanged, seal
from services.context_assembly.core.plan import Choice, Continued, PromptPlan, TurnToPlan
from services.context_assembly.core.planner import Planner, PromptTooLarge
from services.context_assembly.ports import (
    PAGE_ROWS,
    SHORT_TEXT_BYTES,
    ConversationKey,
    Cursor,
    NewStep,
    StepKey,
    TextKey,
    TurnKey,
)
from services.context_assembly.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime, timedelta

    from schemas.turns import TurnStartedV1
    from services.context_assembly.core.budget import ModelLimits
    from services.context_assembly.core.candidates import Candidate
    from services.context_assembly.core.history import HistoryRow
    from services.context_assembly.core.instructions import Instruction, SystemPolicy
    from services.context_assembly.layers import Layer
    from services.context_assembly.ports import CapturePostures

SOURCE: Final = "context_assembly"

FIRST_STEP: Final = 1
"""A plain turn has one step; later ones follow from tool results."""


@dataclass(frozen=True, slots=True)
class Policies:
    """The operator's choices for every plan.

    Attributes:
        limits_of: The limits of a model by name; None asks for the default model.
        step_limit: Longest time a step may take; the turn's own deadline may come first.
        postures: Whose payloads are kept for a while.
        layers: What fills the data sections; none costs nothing.
    """

    limits_of: Callable[[str | None], ModelLimits]
    system: SystemPolicy
    step_limit: timedelta
    postures: CapturePostures
    layers: Sequence[Layer] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """A ``turn.started`` on its way to a plan, and how far its history was read.

    Attributes:
        offered: What the data layers would like to show.
    """

    event: Event[TurnStartedV1]
    reading: Reading
    offered: list[Candidate] = field(default_factory=list)

    @classmethod
    def of(
        cls, event: Event[TurnStartedV1], policies: Policies, *, first_rows: int = PAGE_ROWS
    ) -> Start:
        """Nothing is read yet, and the current message is not counted."""
        data = event.data
        limits = policies.limits_of(data.model)
        turn = TurnToPlan(
            turn_id=event.turn_id,
            step_id=ids.step_id(event.turn_id, FIRST_STEP),
            step_no=FIRST_STEP,
            base_seq=data.base_seq,
            user_message_id=data.user_message_id,
            current_tokens=0,
            kind=data.kind,
            supersedes=data.supersedes,
            continues=tuple(Continued(message_id, 0) for message_id in data.continues),
        )
        cursor = Cursor(
            event.tenant_id,
            event.conversation_id,
            data.branch_id,
            data.base_seq,
            limits.tokenizer,
            first_rows,
        )
        planner = Planner(limits, policies.system, sampling_of(data.options, limits))
        return cls(event, Reading(turn, planner, cursor))

    @property
    def step(self) -> StepKey:
        """The step that is planned."""
        return StepKey(self.event.tenant_id, self.reading.turn.step_id)

    @property
    def turn(self) -> TurnKey:
        """Its turn."""
        return TurnKey(self.event.tenant_id, self.event.turn_id)

    @property
    def conversation(self) -> ConversationKey:
        """Its conversation."""
        return ConversationKey(self.event.tenant_id, self.event.conversation_id)

    @property
    def own(self) -> list[TextKey]:
        """What the turn shows itself: the message that is owed an answer, then what it continues.

        All must have a text.
        """
        data = self.event.data
        ids_shown = (data.user_message_id, *data.continues)
        return [TextKey(self.event.tenant_id, message_id) for message_id in ids_shown]

    def set_own_tokens(self, counted: Mapping[TextKey, int]) -> None:
        """Tell the planner how long these are."""
        current, *continued = (counted[key] for key in self.own)
        turn = self.reading.turn
        continues = tuple(
            replace(one, tokens=tokens)
            for one, tokens in zip(turn.continues, continued, strict=True)
        )
        self.reading.turn = replace(turn, current_tokens=current, continues=continues)

    def set_instructions(self, instructions: tuple[Instruction, ...]) -> None:
        """Tell the planner what the tenant and the conversation tell every model."""
        if instructions:
            planner = self.reading.planner
            self.reading.planner = replace(planner, instructions=instructions)


@dataclass(frozen=True, slots=True)
class Draft:
    """A turn whose history is chosen and whose texts are not read yet.

    Attributes:
        choice: None if the parts that may not be trimmed do not fit.
    """

    start: Start
    rows: Sequence[HistoryRow]
    choice: Choice | None

    @property
    def texts_missing(self) -> list[TextKey]:
        """Stored messages that will be shown, and whose text did not come with the history."""
        if self.choice is None:
            return []
        tenant = self.start.event.tenant_id
        rows = chain.from_iterable(group.rows for group in self.choice.suffix.kept)
        return [TextKey(tenant, row.message_id) for row in rows if row.length > SHORT_TEXT_BYTES]


@dataclass(frozen=True, slots=True)
class Judged:
    """A plan without its texts, and the invariant that it breaks.

    Attributes:
        plan: None where nothing was chosen.
        broken: None for a plan that may be sent.
    """

    start: Start
    plan: PromptPlan | None
    broken: Invariant | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step to store, with the plan it came from where there is one."""

    start: Start
    step: NewStep
    plan: PromptPlan | None


def draft(start: Start, counted: Mapping[TextKey, int]) -> Draft:
    """Choose the history of a turn's step from what was read."""
    rows = start.reading.rows(counted)
    try:
        choice = start.reading.planner.choose(start.reading.turn, rows, start.offered)
    except PromptTooLarge:
        choice = None
    return Draft(start, rows, choice)


def judge(drafted: Draft) -> Judged:
    """Lay a draft out and check it; needs no text."""
    start = drafted.start
    if drafted.choice is None:
        return Judged(start, None)
    planner = start.reading.planner
    plan = planner.lay_out(start.reading.turn, drafted.choice)
    try:
        check(plan, Evidence(planner, drafted.rows, start.offered))
    except InvariantBroken as error:
        return Judged(start, plan, error.invariant)
    return Judged(start, plan)


@dataclass(frozen=True, slots=True)
class Moment:
    """When and in which trace a step is decided."""

    now: datetime
    traceparent: str | None


def finish(
    judged: Judged, texts: Mapping[str, str], *, moment: Moment, limit: timedelta
) -> Outcome:
    """Render a plan; one that breaks an invariant is refused and kept.

    Args:
        texts: Of the tenant's messages, by id.
        limit: Longest time the step may take from now.

    Raises:
        HistoryChanged: A message of a sound plan has no text any more.
    """
    start = judged.start
    if judged.plan is None:
        return Outcome(start, refused(start, "context_too_large", moment), None)
    try:
        plan, payload = seal(judged.plan, texts)
    except HistoryChanged:
        if judged.broken is None:
            raise
        # Planning again would show what was chosen wrongly once more; the verdict stands.
        step = refused(start, "invariant", moment, invariant=judged.broken)
        document = orjson.dumps(to_document(judged.plan)).decode()
        return Outcome(start, replace(step, plan=document), judged.plan)
    document = orjson.dumps(to_document(plan)).decode()
    broken = judged.broken or _broken_by_texts(plan, texts)
    if broken is not None:
        step = refused(start, "invariant", moment, invariant=broken)
        return Outcome(start, replace(step, plan=document, capture=payload), plan)
    deadline_at = min(start.event.data.deadline_at, moment.now + limit)
    told = StepPlannedV1(
        step_id=plan.turn.step_id,
        step_no=plan.turn.step_no,
        branch_id=start.event.data.branch_id,
        seq=plan.turn.base_seq,
        model=plan.limits.model,
        fingerprint=plan.fingerprint,
        deadline_at=deadline_at,
        limited_by="turn" if deadline_at == start.event.data.deadline_at else "step",
    )
    step = _step(start, told, moment, deadline_at)
    return Outcome(start, replace(step, plan=document, payload=payload), plan)


def _broken_by_texts(plan: PromptPlan, texts: Mapping[str, str]) -> Invariant | None:
    """What the texts themselves break; only where data is framed."""
    if plan.nonce is None:
        return None
    shown = [texts[message_id] for message_id in plan.message_ids]
    shown += [one.text for one in plan.instructions]
    shown += [one.text for one in plan.choice.data]
    try:
        check_texts(plan, shown)
    except InvariantBroken as error:
        return error.invariant
    return None


def refused(start: Start, reason: str, moment: Moment, *, invariant: str | None = None) -> NewStep:
    """A step that will not be sent; its turn fails with ``reason``."""
    told = StepRefusedV1(reason=reason, invariant=invariant)
    step = _step(start, told, moment, start.event.data.deadline_at)
    return replace(step, reason=reason, invariant=invariant)


def _step(start: Start, told: Data, moment: Moment, deadline_at: datetime) -> NewStep:
    cause = start.event
    turn = start.reading.turn
    event = Event(
        id=ids.caused_id(turn.step_id, told.TYPE),
        source=SOURCE,
        tenant_id=cause.tenant_id,
        conversation_id=cause.conversation_id,
        correlation_id=cause.turn_id,
        causation_id=cause.id,
        occurred_at=moment.now,
        traceparent=moment.traceparent,
        data=told,
    )
    return NewStep(
        tenant_id=cause.tenant_id,
        step_id=turn.step_id,
        turn_id=turn.turn_id,
        step_no=turn.step_no,
        conversation_id=cause.conversation_id,
        branch_id=cause.data.branch_id,
        seq=turn.base_seq,
        model=start.reading.planner.limits.model,
        deadline_at=deadline_at,
        message=outbox_message(event, CONTEXT_EVENTS),
    )
