// The words for states and reasons; the same word for the same thing on every page.

export const TERMINAL = new Set(["completed", "partial", "failed", "cancelled"]);

const STATES = {
  pending: "○ thinking", generating: "◌ thinking", waiting_for_tool: "◌ waiting for a tool",
  completed: "● answered", partial: "◐ stopped early", failed: "✕ failed", cancelled: "✕ cancelled",
};

const REASONS = {
  provider_cut: "Stopped here: the provider cut the stream.",
  lease_expired: "Stopped here: the worker that wrote it was lost.",
  max_tokens: "Stopped here: the answer reached its longest length.",
  content_filter: "Stopped here: the provider's filter ended it.",
  deadline: "Stopped: the time for this turn ran out.",
  step_deadline: "Stopped: the time for this step ran out.",
  idle_timeout: "Stopped: the model said nothing for too long.",
  context_too_large: "The message is larger than the model's window.",
  invariant: "The plan broke a rule, so nothing was sent to the model.",
  provider_refused: "The provider refused the request.",
  provider_unavailable: "The provider could not be reached.",
  queue_timeout: "The turn waited too long for the one before it.",
  dead_lettered: "The turn could not be handled.",
  internal: "Something went wrong on the server.",
  user: "You stopped this answer.",
  no_subscriber: "Stopped: nobody was reading it any more.",
  replaced: "Stopped: a newer message took its place.",
  conversation_deleted: "Stopped: the conversation was deleted.",
};

/** What to do about a failure; the rest is helped by asking again. */
const ADVICE = {
  context_too_large: "Shorten the message and send it again.",
  invariant: "An operator can see which rule; the plan shows what was about to be sent.",
  provider_refused: "Choose other words, or ask an operator whether the provider's key is valid.",
  dead_lettered: "An operator can see why. You can ask again.",
};
const ASK_AGAIN = "You can ask for the answer again.";

/**
 * The state of an answer in one or two words.
 * @param {{status: string, ahead?: number|null, hasText?: boolean, isStopping?: boolean}} answer
 */
export function stateWord({ status, ahead, hasText, isStopping }) {
  if (isStopping && !TERMINAL.has(status)) return "◌ stopping";
  if (status === "pending" && ahead) return `○ queued, ${ahead} before it`;
  if (status === "generating" && hasText) return "◌ answering";
  return STATES[status] || status;
}

/**
 * Why an answer is not complete, and what to do; empty for one that is.
 * @param {{status: string, reason: string|null}} answer
 */
export function reasonText({ status, reason }) {
  if (!["partial", "failed", "cancelled"].includes(status)) return "";
  const why = REASONS[reason] || (reason ? `Reason: ${reason.replaceAll("_", " ")}.` : "");
  if (status !== "failed") return why;
  return `${why} ${ADVICE[reason] || ASK_AGAIN}`.trim();
}
