// The words of the plan inspector: states, hops, sections, whose words a block is, why it is left out.
import { duration, number } from "./dom.js";

export const TERMINAL = new Set(["completed", "partial", "failed", "cancelled"]);

const BADGES = {
  pending: "○ waiting", generating: "◌ answering", waiting_for_tool: "◌ waiting for a tool",
  completed: "● answered", partial: "◐ stopped early", failed: "✕ failed", cancelled: "✕ cancelled",
};

/** Why a turn ended as it did, as the rest of a sentence; and what helps. */
const REASONS = {
  provider_cut: ["the provider cut the stream", "Continue the answer in the conversation, or answer again."],
  lease_expired: ["the worker that wrote it was lost", "Continue the answer in the conversation, or answer again."],
  max_tokens: ["the answer reached its longest length", "Continue it in the conversation, or allow longer answers."],
  content_filter: ["the provider's filter ended it", "Ask in other words."],
  deadline: ["the time for this turn ran out", "Answer again; the timeline shows where the time went."],
  step_deadline: ["the time for this step ran out", "Answer again; the timeline shows where the time went."],
  idle_timeout: ["the model said nothing for too long", "Answer again; an operator can see how the provider is."],
  context_too_large: ["the message alone is larger than the model's window", "Shorten the message, or choose a model with a larger window."],
  invariant: ["the plan broke a rule, so nothing was sent to the model", "Give the turn's id to an operator; the step below names the rule."],
  provider_refused: ["the provider refused the request", "Ask in other words; an operator can check the provider's key."],
  provider_unavailable: ["the provider could not be reached", "Answer again; the attempts below say what the provider answered."],
  provider_error: ["the provider answered with an error", "Answer again; the attempts below say what the provider answered."],
  queue_timeout: ["it waited too long for the turn before it", "Send the message again."],
  dead_lettered: ["it could not be handled", "Give the turn's id to an operator, who can see why."],
  internal: ["something went wrong on the server", "Send the message again; give the turn's id to an operator."],
  user: ["you stopped it", ""],
  no_subscriber: ["nobody was reading it any more", ""],
  replaced: ["a newer message took its place", ""],
  conversation_deleted: ["the conversation was deleted", ""],
};

const HOPS = {
  accepted: "Accepted", started: "Started", planned: "Planned", refused: "Refused by a rule",
  called: "Model called", first_token: "First token", call_ended: "Last token", committed: "Committed",
};

/** What passes between a hop and the one before it, and whose time that is. */
const PHASES = {
  started: ["waiting for its turn", "wait"], planned: ["planning", "work"], refused: ["planning", "work"],
  called: ["waiting for a worker", "wait"], first_token: ["model, until it spoke", "model"],
  call_ended: ["model, speaking", "model"], committed: ["committing", "work"],
};

const SILENT = { word: "Call ended", phase: "call without a word", kind: "model" };
/** Nobody measured what a worker did that died: its lease had to run out. */
const LOST = { word: "Worker lost", phase: "lost with its worker", kind: "wait" };

const TRUST = {
  operator: "operator", user: "user", model: "model", derived: "derived", data: "data", tool_result: "tool",
};

const KINDS = {
  framing: "sentence about frames", current: "message to answer", continuation: "unfinished answer",
  no_answer: "mark [no answer]", no_question: "mark [no question]", noted: "mark [noted]", interrupted: "mark [interrupted]",
};

const LEFT_OUT = {
  budget: ["no room", "It did not fit any more. What is newer was kept, and nothing older is shown, so that the history has no hole."],
  superseded: ["superseded", "Something was said instead of it."],
  deleted: ["deleted", "It was deleted."],
  expired: ["expired", "It was too old to be used."],
  low_confidence: ["unsure", "It was not certain enough to be shown as a fact."],
  unauthorized: ["not allowed", "The right to see it was not confirmed."],
  stale_index: ["stale", "The index knew an older version of it."],
  duplicate: ["duplicate", "The same text is shown already."],
  policy: ["policy", "A rule of the operator keeps it out."],
};

const PATTERNS = {
  two_new: "Two new", one_new: "One new", several_new: "Several new", unchanged: "Unchanged",
  vanished: "Vanished", clipped: "Clipped", twice: "Twice", foreign: "Foreign", swapped: "Swapped", stale_revision: "Stale revision",
};

const ABSENT = {
  not_stored: "nobody said it in this conversation", deleted: "it was deleted", superseded: "it stands on another branch, or something was said instead",
  later: "it was said later", budget: "there was no room for it", no_answer: "it has no answer that could be shown",
};

const RULES = {
  current_turn_once_in_plan: "the message to answer would not have stood in it once, and last",
  superseded_excluded: "something that was replaced or deleted would have been shown",
  plan_within_budget: "it was larger than its budget",
  plan_deterministic: "the same rows gave another plan",
  history_contiguous: "its history had a hole, or was not the newest",
  trust_framed: "data was not set apart from instructions",
};

const plain = (word) => String(word ?? "").replaceAll("_", " ");

/** What a rule of plans that was broken would have meant. @param {string} invariant */
export const ruleWords = (invariant) => RULES[invariant] || "";

/** @param {string} status */
export const badge = (status) => BADGES[status] || plain(status);
export const trustWord = (trust) => TRUST[trust] || plain(trust);
export const patternWord = (pattern) => PATTERNS[pattern] || plain(pattern);
export const absentWord = (reason) => ABSENT[reason] || LEFT_OUT[reason]?.[0] || plain(reason);

/** Why something is left out: in a word, and in a sentence. @param {string} reason */
export function leftOutWords(reason) {
  const [word, sentence] = LEFT_OUT[reason] || [plain(reason), ""];
  return { word, sentence };
}

/**
 * A hop in a word, what passed before it, and whose time that was.
 * @param {{name: string}} hop
 * @param {{name: string}|undefined} before
 * @param {{reason: string|null}|undefined} attempt that the hop belongs to
 */
export function hopWords(hop, before, attempt) {
  const [phase, kind] = before ? PHASES[hop.name] || ["", "work"] : ["", ""];
  if (hop.name !== "call_ended" || before?.name === "first_token") return { word: HOPS[hop.name] || plain(hop.name), phase, kind };
  return attempt?.reason === "lease_expired" ? LOST : SILENT;
}

/** What a block is, in a word or two. */
export function kindWord(block) {
  if (block.kind === "message") return block.role === "user" ? "message" : "answer";
  if (block.kind === "system") return block.layer === "workspace" ? "instructions" : "system policy";
  return KINDS[block.kind] || plain(block.kind);
}

/** Why a turn ended, and what helps; null for one that has no reason. */
export function reasonOf(turn) {
  if (!turn.reason) return null;
  const [why, advice] = REASONS[turn.reason] || [plain(turn.reason), ""];
  return { why, advice };
}

/**
 * The turn in one sentence.
 * @param {{turn: any, totalMs: number, plan: any|null, leftOut: number|null}} facts
 */
export function sentence({ turn, totalMs, plan, leftOut }) {
  const took = duration(totalMs);
  const why = reasonOf(turn);
  const because = why ? `: ${why.why}` : "";
  const shown = plan ? shownWords(plan, leftOut) : "";
  switch (turn.status) {
    case "completed": return `Answered in ${took}${shown && ` with ${shown}`}.`;
    case "partial": return `Stopped early after ${took}${because}.${shown && ` The model saw ${shown}.`}`;
    case "failed": return `Failed after ${took}${because}.${shown && ` The plan holds ${shown}.`}`;
    case "cancelled": return `Cancelled after ${took}${because}.${shown && ` The model saw ${shown}.`}`;
    case "pending": return waitingWords(turn);
    default: return `Being answered for ${took}${shown && ` with ${shown}`}.`;
  }
}

function waitingWords(turn) {
  const ahead = turn.queue_position || 0;
  if (ahead > 0) return `Queued: ${number(ahead)} ${ahead === 1 ? "turn is" : "turns are"} before it.`;
  return "Accepted, and about to start.";
}

function shownWords(plan, leftOut) {
  const count = plan.count ?? 0;
  const all = leftOut === null ? "" : ` of ${number(count + leftOut)}`;
  const noun = (leftOut === null ? count : count + leftOut) === 1 ? "message" : "messages";
  const tokens = plan.budget ? `, ${number(plan.budget.used)} of ${number(plan.budget.tokens)} tokens` : "";
  return `${number(count)}${all} ${noun}${tokens}`;
}
