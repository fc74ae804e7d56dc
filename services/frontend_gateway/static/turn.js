// The plan inspector: what happened to one turn, what the model was shown, and what was left out.
import { Problem, request, told } from "./api.js";
import { $, copy, el, number } from "./dom.js";
import { Asks } from "./turn_asks.js";
import { Blocks } from "./turn_blocks.js";
import { budgetView } from "./turn_budget.js";
import { Detail } from "./turn_detail.js";
import { timesView } from "./turn_times.js";
import { TERMINAL, badge, reasonOf, sentence } from "./turn_words.js";

const POLL_MS = 1000; // while the turn is open
const LONGEST_POLL_MS = 10_000; // while the server does not answer
const WRONG_CLOCK_MS = 60_000; // above it this machine's clock is not believed

const turnId = decodeURIComponent(location.pathname.split("/").pop() || "");
const state = { turn: null, timeline: null, steps: [], step: null, skewMs: 0, readAt: 0, failures: 0, isOver: false, noPlan: "" };

const detail = new Detail({ turnId, step: () => state.step, onClose: closed, onError: gone });
const blocks = new Blocks({ scroller: $("main"), nowMs, onOpen: open, onStep: (row) => { if (detail.id !== null && row.type !== "older") open(row, false); }, loadOlder, loadExcerpts });
let asks = null;

/** The time by the server's clock, whatever this machine's says. */
function nowMs() {
  return Date.now() + state.skewMs;
}

function plan() {
  return (state.steps.find((one) => one.step_no === state.step) || state.steps.at(-1))?.plan || null;
}

/* Reading ------------------------------------------------------------------------------------- */

async function read() {
  const before = performance.now();
  const [turn, timeline] = await Promise.all([request("GET", `/v1/turns/${turnId}`), request("GET", `/v1/turns/${turnId}/timeline`)]);
  const skewMs = Date.parse(timeline.now) + (performance.now() - before) / 2 - Date.now();
  state.skewMs = Math.abs(skewMs) > WRONG_CLOCK_MS ? skewMs : 0;
  Object.assign(state, { turn, timeline, readAt: performance.now(), failures: 0 });
  if (state.steps.length < timeline.steps.length || (TERMINAL.has(turn.status) && !state.steps.length)) await readPlan();
}

async function readPlan() {
  try {
    state.steps = (await request("GET", `/v1/turns/${turnId}/plan`)).steps;
    state.noPlan = "";
  } catch (error) {
    if (error.status !== 404) throw error;
    state.noPlan = error.message;
    state.steps = [];
  }
}

async function loadOlder() {
  const { next, total } = blocks.leftOut;
  if (total !== null && next === null) return;
  const query = new URLSearchParams({ limit: "100", ...(next ? { below: String(next) } : {}), ...(state.step ? { step: String(state.step) } : {}) });
  try {
    blocks.addLeftOut(await request("GET", `/v1/turns/${turnId}/plan/left-out?${query}`));
  } catch (error) {
    if (!gone(error)) notice(told(error));
  }
}

/** How texts begin; a row without one says less, and that is all. @param {string[]} ids */
async function loadExcerpts(ids) {
  const query = new URLSearchParams([...ids.map((id) => ["ids", id]), ...(state.step ? [["step", String(state.step)]] : [])]);
  try {
    return (await request("GET", `/v1/turns/${turnId}/plan/excerpts?${query}`)).data;
  } catch (error) {
    gone(error);
    return [];
  }
}

async function loop() {
  for (;;) {
    try {
      const wasOpen = state.turn && !TERMINAL.has(state.turn.status);
      await read();
      draw();
      if (wasOpen && TERMINAL.has(state.turn.status)) say($("sentence").textContent);
      notice(state.skewMs ? wrongClock() : "");
      if (TERMINAL.has(state.turn.status)) return;
    } catch (error) {
      if (gone(error)) return;
      state.failures += 1;
      if (!state.turn) failed(error);
      else notice(`${told(error)} Trying again.`);
    }
    await pause(Math.min(LONGEST_POLL_MS, POLL_MS * 2 ** Math.max(0, state.failures - 1)));
    if (state.isOver) return;
  }
}

/** Waits; a page that nobody sees asks nothing. */
function pause(delayMs) {
  return new Promise((resolve) => {
    setTimeout(() => {
      if (document.visibilityState === "visible") return resolve();
      document.addEventListener("visibilitychange", resolve, { once: true });
    }, delayMs);
  });
}

/* The page ------------------------------------------------------------------------------------ */

function draw() {
  const { turn, timeline } = state;
  const shown = plan();
  $("back").href = `/ui/#${turn.conversation_id}`;
  $("back").textContent = "Conversation";
  const openMs = TERMINAL.has(turn.status) || !timeline.hops.length ? 0 : Math.max(0, Date.parse(timeline.now) - Date.parse(timeline.hops.at(-1).at));
  const head = el("div", { class: "head" }, headline(openMs), factsView(), adviceView());
  const times = el("div", { class: "cards" }, timesView(timeline, openMs), shown?.budget ? budgetView(shown.budget) : null);
  if (!$("head")) {
    asks = new Asks({ turn, step: () => state.step, blocks, json, openId, onError: gone, say });
    $("page").replaceChildren(el("div", { id: "head" }), el("div", { id: "rest" }));
  }
  keepFocus(() => $("head").replaceChildren(head, times));
  $("skip").hidden = !shown;
  if (shown && shown !== blocks.plan) {
    blocks.setPlan(shown);
    $("rest").replaceChildren(...[stepChoice(), asks.node, blocks.node].filter(Boolean));
    blocks.redraw();
    loadOlder().then(() => redrawHeadline());
  } else if (!shown) {
    $("rest").replaceChildren(noPlanView());
  }
}

function headline(openMs) {
  const totalMs = state.timeline.total_ms + openMs;
  const leftOut = blocks.plan && blocks.plan === plan() ? blocks.leftOut.total : null;
  const words = sentence({ turn: state.turn, totalMs, plan: plan(), leftOut });
  document.title = `${words.split(/ (in|after|for) |[:.]/)[0]} · turn ${turnId.slice(0, 8)} · Turnwire`;
  return el("h1", { id: "sentence" }, words);
}

function redrawHeadline() {
  const { timeline, turn } = state;
  const openMs = TERMINAL.has(turn.status) || !timeline.hops.length ? 0 : Math.max(0, Date.parse(timeline.now) - Date.parse(timeline.hops.at(-1).at));
  $("sentence")?.replaceWith(headline(openMs));
}

function factsView() {
  const { turn, timeline } = state;
  const shown = plan();
  const attempts = Math.max(0, ...timeline.attempts.map((one) => one.attempt));
  const facts = [
    el("span", { class: "badge", "data-state": turn.status }, badge(turn.status)),
    attempts ? el("span", {}, `${number(attempts)} ${attempts === 1 ? "attempt" : "attempts"}`) : null,
    turn.kind !== "message" ? el("span", {}, turn.kind) : null,
    shown?.model || turn.model ? el("span", {}, `model ${shown?.model || turn.model}`) : null,
    shown ? el("span", {}, `revision ${shown.assembly_revision}`) : null,
    shown?.fingerprint ? el("span", {}, "fingerprint ", shortId(shown.fingerprint)) : null,
    el("span", {}, "turn ", shortId(turn.id)),
    turn.parent_turn_id ? el("span", {}, "after ", el("a", { class: "mono", href: `/ui/turns/${turn.parent_turn_id}`, title: turn.parent_turn_id }, turn.parent_turn_id.slice(0, 8))) : null,
  ];
  return el("p", { class: "meta" }, ...facts.filter(Boolean));
}

/** The first characters of an id; a click copies all of it. */
function shortId(id) {
  const button = el("button", { type: "button", class: "link mono", title: `${id}: click to copy`, onclick: () => copy(button, id) }, id.slice(0, 8));
  return button;
}

function adviceView() {
  const why = reasonOf(state.turn);
  return why?.advice ? el("p", { class: "advice" }, why.advice) : null;
}

function stepChoice() {
  if (state.steps.length < 2) return null;
  const choice = el("select", { id: "step" }, ...state.steps.map((one) => el("option", { value: String(one.step_no), selected: one.plan === plan() }, `Step ${one.step_no} of ${state.steps.length}`)));
  choice.addEventListener("change", () => { state.step = Number(choice.value); detail.clear(); draw(); });
  return el("p", {}, el("label", { for: "step" }, "Plan of "), choice);
}

function noPlanView() {
  const { turn } = state;
  const waits = !TERMINAL.has(turn.status);
  return el("div", { class: "state" }, el("h2", {}, waits ? "There is no plan yet" : "There is no plan"),
    el("p", {}, waits ? "The plan is made when the turn starts, and appears here by itself." : state.noPlan || "This turn ended before the model was to be called."),
    turn.queue_position ? el("p", { class: "quiet" }, "Turns of one branch are answered one after the other.") : null);
}

function keepFocus(change) {
  const held = document.activeElement;
  const place = held && $("head").contains(held) ? held.textContent : null;
  change();
  if (place !== null) [...$("head").querySelectorAll("button, a")].find((one) => one.textContent === place)?.focus();
}

/* Rows and texts ------------------------------------------------------------------------------ */

function open(row, withFocus = true) {
  detail.open(row, plan(), withFocus);
  blocks.setCurrent(row.id);
  blocks.show(row.id);
}

function closed() {
  const { current } = blocks;
  blocks.setCurrent(null);
  if (current) blocks.reveal(current, false);
}

/** Shows a message or a block by its id, wherever it stands. @param {string} id */
function openId(id) {
  const row = blocks.find(id) || { type: "out", id, out: { id, reason: "budget", seq: null, role: null, status: null, tokens: null, length: null, said_at: null } };
  blocks.reveal(id);
  open(row);
}

function json() {
  return JSON.stringify({ turn: state.turn, timeline: state.timeline, plan: { steps: state.steps } }, null, 2);
}

/* What can go wrong ---------------------------------------------------------------------------- */

/** Whether an error ends this page: signed out, not allowed, or no such turn. @param {Error} error */
function gone(error) {
  if (!(error instanceof Problem) || ![401, 403, 404].includes(error.status)) return false;
  if (error.status === 404 && state.turn) return false;
  state.isOver = true;
  detail.clear();
  $("skip").hidden = true;
  notice("");
  const views = { 401: signedOut, 403: () => ended("This key may not read turns", told(error)), 404: () => ended("There is no such turn for this key", told(error)) };
  $("page").replaceChildren(views[error.status]());
  document.title = "Turn · Turnwire";
  return true;
}

function signedOut() {
  return el("div", { class: "state" }, el("h1", {}, "You are signed out"),
    el("p", {}, "The key was revoked, or the session is over. Texts were taken off this page."),
    el("p", {}, el("a", { class: "button main", href: `/ui/login?next=${encodeURIComponent(location.pathname)}` }, "Sign in")));
}

function ended(title, words) {
  return el("div", { class: "state" }, el("h1", {}, title), el("p", {}, words), el("p", {}, el("a", { href: "/ui/" }, "Your conversations")));
}

function failed(error) {
  $("page").replaceChildren(el("div", { class: "state" }, el("h1", {}, "The turn could not be read"), el("p", {}, `${told(error)} Trying again.`)));
}

function notice(text) {
  if ($("notice").textContent !== text) $("notice").textContent = text;
}

function wrongClock() {
  const hours = Math.abs(state.skewMs) / 3_600_000;
  const much = hours >= 1.5 ? `${number(Math.round(hours))} hours` : `${number(Math.max(1, Math.round(hours * 60)))} minutes`;
  return `The clock of this device is ${much} ${state.skewMs > 0 ? "behind" : "ahead"}. Times on this page follow the server.`;
}

function say(text) {
  $("spoken").replaceChildren(el("p", {}, text));
}

document.addEventListener("keydown", (event) => { if (event.key === "Escape") detail.close(); });
loop();
