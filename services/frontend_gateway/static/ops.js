// The operator's view: which part the address names, reading it, and reading it again.
import { request, told } from "./api.js";
import { $, el } from "./dom.js";
import { actsList, found, leasesList, lettersList, outboxList, servicesList, turnsList } from "./ops_lists.js";
import { back, stateOf } from "./ops_parts.js";
import { deadLetter, story } from "./ops_story.js";
import { wall } from "./ops_wall.js";

const READ_EVERY_MS = 5000; // as often as the services say how they are
const AGAIN_AFTER_ACT_MS = 1500; // an act is done within a second or two
const ID = /^[0-9a-f-]{36}$/i;

const query = /** @type {HTMLInputElement} */ ($("query"));
let reading = 0; // number of the latest reading: an answer that comes late draws nothing
let timer = 0;
let shown = "";

/** What the address names: a part, the rest of its path, and its parameters. */
function place() {
  const [path, text] = location.hash.replace(/^#\/?/, "").split("?");
  const [part, ...rest] = path.split("/");
  return { part, rest: decoded(rest.join("/")), params: new URLSearchParams(text || "") };
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

const PARTS = {
  "": async () => ({ title: "Operator", view: wall(await get("overview")), isLive: true }),
  services: async () => ({ title: "Processes", view: servicesList((await get("services")).data), isLive: true }),
  outbox: async () => ({ title: "Outbox", view: outboxList(await get("outbox")), isLive: true }),
  leases: async () => ({ title: "Leases", view: leasesList(await get("leases")), isLive: true }),
  acts: async () => ({ title: "Acts", view: actsList((await get("acts")).data) }),
  "dead-letters": async ({ params }) => ({ title: "Dead letters", view: lettersList((await get("dead-letters")).data, params.get("service")) }),
  turns: async ({ params }) => {
    const [status, reason] = [params.get("status"), params.get("reason")];
    const asked = new URLSearchParams({ ...(status ? { status } : {}), ...(reason ? { reason } : {}) });
    return { title: "Turns", view: turnsList((await get(`turns?${asked}`)).data, status, reason) };
  },
  search: async ({ params }) => {
    const text = (params.get("q") || "").trim();
    if (!text) return { title: "Search", view: el("div", {}, back(), stateOf("Search for something", "Any id of a turn, a conversation, a request or a dead letter, or an idempotency key.")) };
    query.value = text;
    const answer = await get(`search?${new URLSearchParams({ q: text })}`);
    if (answer.turns.length === 1 && !answer.dead_letter) { location.replace(`#/turn/${answer.turns[0].turn_id}`); return null; }
    return { title: "Search", view: found(answer, text) };
  },
  turn: async ({ rest }) => {
    const answer = await get(`turns/${named(rest)}`);
    return { title: `Turn ${rest.slice(0, 8)}`, view: story(answer, soon), isLive: answer.may.length > 0, keep: true };
  },
  "dead-letter": async ({ rest }) => {
    const { dead_letter: letter } = await get(`dead-letters/${named(rest)}`);
    return { title: `Dead letter ${rest.slice(0, 8)}`, view: deadLetter(letter, soon), isLive: letter.is_asked, keep: true };
  },
};

const get = (path) => request("GET", `/v1/ops/${path}`);

/** An id for a path; what is none is not sent. @param {string} text */
function named(text) {
  return ID.test(text) ? text : "none";
}

async function read() {
  clearTimeout(timer);
  const number = ++reading;
  const where = place();
  const part = PARTS[where.part];
  if (!part) { draw({ title: "Nothing here", view: missing() }); return; }
  try {
    const made = await part(where);
    if (number !== reading || made === null) return;
    draw(made);
    $("notice").textContent = "";
    if (made.isLive) timer = setTimeout(look, READ_EVERY_MS);
  } catch (error) {
    if (number === reading) failed(error, where);
  }
}

/** Puts a part on the page; somebody who is somewhere in it stays there. */
function draw({ title, view, keep = false }) {
  const isSame = shown === location.hash;
  if (isSame && keep && document.querySelector(".act")) return; // somebody is about to act
  const key = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.key : undefined;
  document.title = `${title} · Turnwire`;
  $("page").replaceChildren(view);
  if (isSame && key) document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  if (!isSame && shown !== "") { $("main").focus({ preventScroll: true }); scrollTo(0, 0); }
  shown = location.hash;
}

function failed(error, where) {
  if (error.status === 401) { location.assign(`/ui/login?next=/ui/ops${location.hash}`); return; }
  if (error.status === 403) { draw({ title: "Not for this key", view: forbidden() }); return; }
  if (error.status === 404) { draw({ title: "Nothing here", view: missing(where.part) }); return; }
  if (shown !== location.hash) draw({ title: "Not now", view: el("div", {}, back(), stateOf("This cannot be shown now", told(error))) });
  else $("notice").textContent = `${told(error)} What you see is older. Trying again.`;
  if (error.retryable) timer = setTimeout(look, READ_EVERY_MS);
}

function forbidden() {
  return stateOf("This page is for operators",
    "The key that you signed in with lacks the scope admin, so it may see its own conversations and not the whole deployment.",
    "An operator's key is made on the host alone:",
    el("code", {}, "turnwire keys create --tenant T --principal P --scope admin"),
    el("span", {}, el("a", { href: `/ui/login?next=/ui/ops${location.hash}` }, "Sign in with another key"), ", or ", el("a", { href: "/ui/" }, "go to your conversations"), "."));
}

function missing(part) {
  const what = part === "turn" ? "There is no such turn" : part === "dead-letter" ? "There is no such dead letter" : "There is nothing here";
  const why = part === "dead-letter"
    ? "It was handled since, its 14 days are over, or the address is not whole."
    : "Nothing has this id, its conversation was purged, or the address is not whole.";
  return el("div", {}, back(), stateOf(what, why, "Search above takes any id and any idempotency key."));
}

/** Reads again, unless nobody looks. */
function look() {
  if (document.hidden) return;
  void read();
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(read, AGAIN_AFTER_ACT_MS);
}

$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = query.value.trim();
  const hash = text ? `#/search?${new URLSearchParams({ q: text })}` : "#/search";
  if (location.hash === hash) void read();
  else location.hash = hash;
});
document.querySelector(".skip")?.addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
window.addEventListener("hashchange", read);
document.addEventListener("visibilitychange", look);
void read();
