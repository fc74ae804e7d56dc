// The timeline of a turn: one bar to scale, a table of its hops, a table of its attempts.
import { duration, el, number } from "./dom.js";
import { hopWords, ruleWords } from "./turn_words.js";

const CLOCK = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hourCycle: "h23" });
const DAY_AND_TIME = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** A day and its time to the second. @param {string|null} iso */
export const moment = (iso) => iso && DAY_AND_TIME.format(new Date(iso));

/** A time of day to the millisecond; the whole time is in its title. @param {string} iso */
export function clock(iso) {
  return el("time", { datetime: iso, title: iso }, CLOCK.format(new Date(iso)));
}

/** Milliseconds with three significant digits. @param {number} ms */
export function ms(value) {
  return Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 2 });
}

/**
 * Bar and tables.
 * @param {any} timeline as answered by the interface
 * @param {number} openMs how long the last hop is ago, of a turn that has not ended; else 0
 */
export function timesView(timeline, openMs) {
  const hops = wordedHops(timeline);
  const parts = segments(hops, openMs);
  const section = el("section", { class: "times", "aria-labelledby": "times-title" }, el("h2", { id: "times-title" }, "Timeline"));
  if (parts.length) section.append(bar(parts));
  section.append(hopTable(hops, openMs), ...refusals(timeline.steps));
  if (timeline.attempts.length) section.append(attemptTable(timeline.attempts));
  return section;
}

/** The hops with their words. */
function wordedHops({ hops, attempts }) {
  return hops.map((hop, place) => {
    const attempt = attempts.find((one) => one.step_no === hop.step_no && one.attempt === hop.attempt);
    return { ...hop, ...hopWords(hop, hops[place - 1], attempt) };
  });
}

function segments(hops, openMs) {
  const found = hops.slice(1).map(({ phase, kind, word, duration_ms }) => ({ phase, kind, ms: duration_ms, until: word }));
  if (openMs > 0) found.push({ phase: "so far", kind: "open", ms: openMs, until: "now" });
  return found;
}

function bar(parts) {
  const label = parts.map((one) => `${one.phase} ${duration(one.ms)}`).join(", ");
  const node = el("div", { class: "scale", role: "img", "aria-label": `To scale: ${label}` });
  for (const one of parts) {
    const piece = el("span", { class: `piece ${one.kind}`, title: `${one.phase}: ${duration(one.ms)}, until: ${one.until}` });
    piece.style.flexGrow = String(Math.max(one.ms, 0));
    node.append(piece);
  }
  return node;
}

function hopTable(hops, openMs) {
  const rows = hops.map((hop) => el("tr", {},
    el("th", { scope: "row" }, el("span", { class: `swatch ${hop.kind}` }), hopName(hop, hops)),
    el("td", { class: "quiet phase" }, hop.phase),
    el("td", { class: "number at" }, clock(hop.at)),
    el("td", { class: "number" }, hop.duration_ms === null ? "" : ms(hop.duration_ms))));
  if (openMs > 0) {
    rows.push(el("tr", {}, el("th", { scope: "row" }, el("span", { class: "swatch open" }), "Now"),
      el("td", { class: "quiet phase" }, "so far"), el("td", { class: "number at" }, ""), el("td", { class: "number" }, ms(openMs))));
  }
  return el("table", { class: "hops" },
    el("caption", { class: "offscreen" }, "Every hop, and how long what came before it took"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Hop"), el("th", { scope: "col", class: "phase" }, "Spent on"),
      el("th", { scope: "col", class: "number at" }, "At"), el("th", { scope: "col", class: "number" }, "Took, ms"))),
    el("tbody", {}, ...rows));
}

/** A hop's word, with its number where there are several of the kind. */
function hopName({ word, attempt, step_no }, hops) {
  if (attempt !== null) return new Set(hops.map((one) => one.attempt)).size > 2 ? `${word}, attempt\u00a0${attempt}` : word;
  if (step_no !== null) return new Set(hops.map((one) => one.step_no)).size > 2 ? `${word}, step\u00a0${step_no}` : word;
  return word;
}

function refusals(steps) {
  return steps.filter((step) => step.reason).map((step) => el("p", { class: "why" },
    `Step ${step.step_no} was refused: ${step.reason.replaceAll("_", " ")}`,
    ...(step.invariant ? [", ", el("code", {}, step.invariant), ruleWords(step.invariant) && `: ${ruleWords(step.invariant)}`] : []), "."));
}

/** One row for an attempt; why it ended as it did has the whole width of the row below. */
function attemptTable(attempts) {
  const rows = attempts.flatMap((one) => [el("tr", {},
    el("th", { scope: "row", class: "number" }, String(one.attempt)),
    el("td", {}, one.outcome),
    el("td", { class: "number" }, one.requests === null ? "" : number(one.requests)),
    el("td", { class: "number" }, one.first_token_ms === null ? "" : number(one.first_token_ms)),
    el("td", { class: "number" }, one.duration_ms === null ? "" : number(one.duration_ms)),
    el("td", { class: "number" }, one.input_tokens === null ? "" : `${number(one.input_tokens)} / ${number(one.output_tokens)}`)),
  why(one) ? el("tr", { class: "reason" }, el("td", {}), el("td", { colspan: "5" }, why(one))) : null]);
  return el("table", { class: "attempts" },
    el("caption", { class: "offscreen" }, "Attempts to get an answer from the model"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "number" }, "Attempt"), el("th", { scope: "col" }, "Outcome"),
      el("th", { scope: "col", class: "number" }, "Sent"), el("th", { scope: "col", class: "number" }, "First, ms"),
      el("th", { scope: "col", class: "number" }, "Whole, ms"), el("th", { scope: "col", class: "number" }, "Tokens in / out"))),
    el("tbody", {}, ...rows.filter(Boolean)));
}

function why({ reason, failure, outcome }) {
  if (reason === "stop" || reason === outcome) return failure || "";
  return [reason, failure].filter(Boolean).map((word) => word.replaceAll("_", " ")).join(", ");
}
