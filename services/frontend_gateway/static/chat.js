// The chat page: lists conversations, sends messages safely, follows answers, shows their state.
import { follow, persist, request, told } from "./api.js";
import { closePlan, duration, el, number, togglePlan } from "./plan.js";

const PAGE = 50;
const UNSENT = "turnwire.unsent"; // a message that was not confirmed yet; a reload sends it again
const WORDS = {
  pending: "○ waiting", generating: "◌ answering", waiting_for_tool: "◌ waiting for a tool",
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
  context_too_large: "The message alone is larger than the model's window. Shorten it and send it again.",
  invariant: "The plan broke a rule, so nothing was sent to the model.",
  provider_refused: "The provider refused the request.",
  provider_unavailable: "The provider could not be reached. Send the message again.",
  queue_timeout: "The turn waited too long for the one before it.",
  dead_lettered: "The turn could not be handled. An operator can see why.",
  internal: "Something went wrong here. Send the message again.",
  user: "You stopped this answer.",
  no_subscriber: "Stopped: nobody was reading it any more.",
  replaced: "Stopped: a newer message took its place.",
  conversation_deleted: "Stopped: the conversation was deleted.",
};

const $ = (id) => document.getElementById(id);
const state = { conversation: null, page: null, oldest: null };

/* Conversations ------------------------------------------------------------------------------- */

async function listConversations({ older = false } = {}) {
  const cursor = older && state.oldest ? `&after=${state.oldest}` : "";
  const list = await request("GET", `/v1/conversations?limit=30${cursor}`);
  state.oldest = list.last_id || state.oldest;
  $("older").hidden = !list.has_more;
  const items = list.data.map(conversationItem);
  if (older) $("conversations").append(...items);
  else $("conversations").replaceChildren(...items);
}

function conversationItem(row) {
  const at = new Date(row.created_at);
  const time = el("time", { datetime: row.created_at, title: at.toLocaleString() }, ago(at));
  const name = el("span", { class: "name" }, row.title || "Untitled");
  const button = el("button", { type: "button", "data-id": row.id, onclick: () => go(row.id) }, name, time);
  if (row.id === state.conversation) button.setAttribute("aria-current", "true");
  return el("li", {}, button);
}

function markCurrent() {
  for (const button of $("conversations").querySelectorAll("button")) {
    if (button.dataset.id === state.conversation) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

function ago(at) {
  const minutes = Math.round((Date.now() - at) / 60_000);
  const format = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
  if (minutes < 60) return format.format(-minutes, "minute");
  if (minutes < 48 * 60) return format.format(-Math.round(minutes / 60), "hour");
  return format.format(-Math.round(minutes / 1440), "day");
}

function go(id) {
  location.hash = id ? `#${id}` : "";
  if (matchMedia("(max-width: 800px)").matches) setDrawer(false);
}

async function openFromHash() {
  const id = location.hash.slice(1) || null;
  if (id && id === state.conversation) return;
  state.page?.abort();
  state.page = new AbortController();
  state.conversation = id;
  closePlan();
  markCurrent();
  notice("");
  if (!id) return showEmpty();
  await showMessages(id, state.page.signal);
}

function showEmpty() {
  $("messages").replaceChildren(el("div", { class: "empty" }, el("h1", {}, "A new conversation"),
    el("p", {}, "Write a message below. The answer streams in, and its plan shows what the model was given.")));
  $("composer-text").focus();
}

async function showMessages(id, signal) {
  $("messages").replaceChildren(el("p", { class: "quiet" }, "Loading…"));
  try {
    const list = await persist("GET", `/v1/conversations/${id}/messages?limit=${PAGE}&order=desc`, { signal }, () => notice("Reconnecting…"));
    if (signal.aborted) return;
    notice("");
    $("messages").replaceChildren();
    if (list.has_more) $("messages").append(olderButton(id, list.last_id, signal));
    for (const row of list.data.reverse()) addMessage(row, signal);
    scrollDown(true);
  } catch (error) {
    if (error.name === "AbortError") return;
    $("messages").replaceChildren(el("div", { class: "empty" }, el("h1", {}, "This conversation cannot be shown"), el("p", {}, told(error))));
  }
}

function olderButton(id, before, signal) {
  const button = el("button", { type: "button", class: "link" }, "Show earlier messages");
  button.addEventListener("click", async () => {
    const list = await request("GET", `/v1/conversations/${id}/messages?limit=${PAGE}&order=desc&after=${before}`, { signal });
    const height = $("scroll").scrollHeight;
    const rows = list.data.reverse().map((row) => messageView(row, signal).node);
    button.replaceWith(...(list.has_more ? [olderButton(id, list.last_id, signal)] : []), ...rows);
    $("scroll").scrollTop += $("scroll").scrollHeight - height;
  });
  return button;
}

/* Messages ------------------------------------------------------------------------------------ */

function addMessage(row, signal) {
  $("messages").querySelector(".empty")?.remove();
  const view = messageView(row, signal);
  $("messages").append(view.node);
  return view;
}

function messageView(row, signal) {
  const text = el("div", { class: "text" });
  text.textContent = row.content;
  if (row.role === "user") return { node: el("article", { class: "message user", "aria-label": "You" }, text) };
  const meta = el("p", { class: "meta" });
  const end = el("div", {});
  const node = el("article", { class: "message assistant", "aria-label": "Answer" }, text, end, meta);
  const answer = { node, text, meta, end, turnId: row.turn_id, status: row.status, reason: row.reason, sentAt: null };
  drawMeta(answer);
  const isOpen = ["pending", "generating", "waiting_for_tool"].includes(row.status);
  if (isOpen) followAnswer(answer, signal);
  else whenSeen(node, () => completeMeta(answer, signal));
  return { node, answer };
}

function drawMeta(answer) {
  const parts = [el("span", { class: "state", "data-state": answer.status }, stateWord(answer))];
  if (answer.firstMs != null) parts.push(el("span", {}, `first token ${duration(answer.firstMs)}`));
  if (answer.usage) parts.push(el("span", { title: answer.usage.estimated ? "estimated" : "as the provider counted" }, `${number(answer.usage.input)} in, ${number(answer.usage.output)} out${answer.usage.estimated ? " (estimated)" : ""}`));
  if (answer.model) parts.push(el("span", {}, answer.model));
  const plan = el("button", { type: "button", class: "link" }, "plan");
  plan.addEventListener("click", () => togglePlan(answer.turnId, plan));
  parts.push(el("span", {}, plan));
  answer.meta.replaceChildren(...parts);
  drawEnd(answer);
}

function stateWord(answer) {
  if (answer.status === "pending" && answer.position) return `${WORDS.pending}, ${answer.position} before it`;
  return WORDS[answer.status] || answer.status;
}

function drawEnd(answer) {
  if (!["partial", "failed", "cancelled"].includes(answer.status)) return answer.end.replaceChildren();
  const why = REASONS[answer.reason] || (answer.reason ? `Reason: ${answer.reason.replaceAll("_", " ")}.` : "");
  const torn = answer.status === "partial" ? [el("hr", { class: "torn" })] : [];
  answer.end.replaceChildren(...torn, ...(why ? [el("p", { class: "why" }, why)] : []));
}

async function completeMeta(answer, signal) {
  try {
    const turn = await request("GET", `/v1/turns/${answer.turnId}`, { signal });
    Object.assign(answer, { status: turn.status, reason: turn.reason, usage: turn.usage, model: turn.model });
    drawMeta(answer);
  } catch { /* the line stays shorter; the answer is there */ }
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    seen.unobserve(entry.target);
    entry.target.onSeen?.();
  }
});

function whenSeen(node, act) {
  node.onSeen = act;
  seen.observe(node);
}

async function followAnswer(answer, signal) {
  answer.node.setAttribute("aria-busy", "true");
  const speech = new Speech();
  const onEvent = (event, isFirst) => {
    const stick = isAtBottom();
    if (isFirst) { answer.text.textContent = ""; speech.reset(); } // the stream tells everything again
    apply(answer, event, speech);
    if (stick) scrollDown(true);
  };
  const onState = (how) => notice(how === "waiting" ? "Reconnecting…" : "");
  try {
    await follow(answer.turnId, { onEvent, onState, signal });
    if (!signal.aborted) { notice(""); completeMeta(answer, signal); }
  } catch (error) {
    if (error.status === 401) return signOut();
    notice(told(error));
  } finally {
    answer.node.removeAttribute("aria-busy");
  }
}

function apply(answer, { event, data }, speech) {
  if (event === "content_delta") {
    if (answer.firstMs == null && answer.sentAt) answer.firstMs = performance.now() - answer.sentAt;
    if (answer.text.lastChild) answer.text.lastChild.appendData(data.text);
    else answer.text.textContent = data.text;
    speech.add(data.text);
  } else if (event === "snapshot") {
    answer.text.textContent = data.text;
  } else if (event === "status") {
    answer.status = data.state;
    answer.position = data.queue_position;
    drawMeta(answer);
  } else if (event === "usage") {
    answer.usage = data;
  } else if (event === "done") {
    answer.status = data.status;
    answer.reason = data.reason;
    speech.end();
    drawMeta(answer);
  }
}

/** Reads an answer to a screen reader by sentence, not by token. */
class Speech {
  constructor() { this.rest = ""; }
  reset() { this.rest = ""; }
  add(text) {
    this.rest += text;
    const end = Math.max(this.rest.lastIndexOf(". "), this.rest.lastIndexOf("\n"), this.rest.lastIndexOf("? "), this.rest.lastIndexOf("! "));
    if (end < 0) return;
    this.say(this.rest.slice(0, end + 1));
    this.rest = this.rest.slice(end + 1);
  }
  end() { this.say(this.rest); this.rest = ""; }
  say(text) { if (text.trim()) $("spoken").textContent = text.trim(); }
}

function isAtBottom() {
  const box = $("scroll");
  return box.scrollHeight - box.scrollTop - box.clientHeight < 48;
}

function scrollDown(now) {
  if (now) $("scroll").scrollTop = $("scroll").scrollHeight;
}

/* Sending ------------------------------------------------------------------------------------- */

async function send(unsent) {
  sessionStorage.setItem(UNSENT, JSON.stringify(unsent));
  setSending(true);
  const page = state.page.signal;
  const sentAt = performance.now();
  const asked = { role: "user", content: unsent.content };
  const shown = addMessage(asked, page);
  scrollDown(true);
  try {
    const waiting = () => notice("Sending again: the server did not confirm it yet. It is stored once at most.");
    const turn = await deliver(unsent, waiting);
    sessionStorage.removeItem(UNSENT);
    notice("");
    accepted(unsent, turn, { page, sentAt });
  } catch (error) {
    sessionStorage.removeItem(UNSENT);
    if (error.status === 401) return signOut();
    shown.node.remove();
    if (!$("composer-text").value) $("composer-text").value = unsent.content;
    grow();
    notice(told(error));
  } finally {
    setSending(false);
  }
}

/** Posts a message until it is decided; resolves with the turn. */
async function deliver({ conversation, content, key }, onWaiting) {
  if (conversation) {
    const path = `/v1/conversations/${conversation}/messages`;
    return persist("POST", path, { body: { content }, key }, onWaiting);
  }
  const body = { title: titleOf(content), message: { content } };
  return (await persist("POST", "/v1/conversations", { body, key }, onWaiting)).turn;
}

function accepted(unsent, turn, { page, sentAt }) {
  if (!unsent.conversation) {
    state.conversation = turn.conversation_id;
    history.replaceState(null, "", `#${turn.conversation_id}`);
    listConversations().catch(() => {});
  }
  if (page.aborted) return;
  const view = addMessage({ role: "assistant", content: "", status: turn.status, turn_id: turn.turn_id }, page);
  if (view.answer) view.answer.sentAt = sentAt;
  scrollDown(true);
}

function titleOf(content) {
  const line = content.trim().split("\n")[0];
  return line.length > 60 ? `${[...line].slice(0, 59).join("")}…` : line;
}

function setSending(is) {
  $("send").disabled = is;
  $("composer").toggleAttribute("aria-busy", is);
}

/** Finishes what a reload interrupted: the same key, so what was stored is found, not made twice. */
async function resend() {
  const stored = sessionStorage.getItem(UNSENT);
  if (!stored) return;
  const unsent = JSON.parse(stored);
  setSending(true);
  notice("Sending the message that was not confirmed before the reload.");
  try {
    const turn = await deliver(unsent, () => {});
    notice("");
    if (!unsent.conversation) {
      go(turn.conversation_id);
      await listConversations();
    } else if (unsent.conversation === state.conversation) {
      state.page.abort();
      state.page = new AbortController();
      await showMessages(unsent.conversation, state.page.signal);
    }
  } catch (error) {
    $("composer-text").value = unsent.content;
    grow();
    notice(told(error));
  } finally {
    sessionStorage.removeItem(UNSENT);
    setSending(false);
  }
}

/* Frame --------------------------------------------------------------------------------------- */

function notice(text) { $("notice").textContent = text; }

function signOut() { location.assign("/ui/login"); }

function setDrawer(open) {
  document.body.classList.toggle("closed", !open);
  $("drawer").setAttribute("aria-expanded", String(open));
}

function grow() {
  const field = $("composer-text");
  field.rows = Math.min(10, field.value.split("\n").length);
  while (field.rows < 10 && field.scrollHeight > field.clientHeight + 2) field.rows += 1;
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}

function bind() {
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const content = $("composer-text").value;
    if (!content.trim() || $("send").disabled) return;
    $("composer-text").value = "";
    grow();
    send({ conversation: state.conversation, content, key: crypto.randomUUID?.() ?? randomKey() });
  });
  $("composer-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("composer").requestSubmit();
    }
  });
  $("composer-text").addEventListener("input", grow);
  $("new").addEventListener("click", () => go(null));
  $("older").addEventListener("click", () => listConversations({ older: true }));
  $("drawer").addEventListener("click", () => setDrawer(document.body.classList.contains("closed")));
  $("logout").addEventListener("click", () => request("POST", "/ui/logout").finally(signOut));
  $("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark"
      || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    setTheme(dark ? "light" : "dark");
    localStorage.setItem("turnwire.theme", document.documentElement.dataset.theme);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") closePlan(); });
  window.addEventListener("hashchange", openFromHash);
}

function randomKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function start() {
  setTheme(localStorage.getItem("turnwire.theme"));
  setDrawer(!matchMedia("(max-width: 800px)").matches);
  bind();
  try {
    await listConversations();
  } catch (error) {
    if (error.status === 401) return signOut();
    notice(told(error));
  }
  await openFromHash();
  await resend();
}

start();
