// The chat page: puts its parts together and keeps them on the conversation that the address names.
import { persist, request } from "./api.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { $, el } from "./dom.js";
import { dropUnsent, forgetAll, holdTab, keepDraft, noteSession, takeUnsent, toDraft, wasSignedIn } from "./drafts.js";
import { clearNotices } from "./notices.js";
import { Sidebar } from "./sidebar.js";

const ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const NARROW = matchMedia("(max-width: 800px)");

/** @type {Conversation} */
let conversation = null;

const sidebar = new Sidebar({ open: go, onSignedOut: signOut });
const composer = new Composer({
  send: (text) => conversation.send(text),
  stop: () => conversation.stopRunning(),
  editLast: () => conversation.transcript.lastQuestion?.edit(),
  isRunning: () => conversation.isRunning,
});

const acts = {
  onCreated(id) {
    history.replaceState(null, "", `#${id}`);
    composer.moveTo(id);
    sidebar.mark(id);
    sidebar.load();
  },
  onListed: () => sidebar.load(),
  onSignedOut: signOut,
  onChanged: () => composer.draw(),
  onGone: () => showState("This conversation cannot be shown", "There is none with this id, or it belongs to somebody else, or it was deleted. Choose one on the left, or begin a new one."),
  onDeleted(id) {
    const undo = el("button", { type: "button", class: "button", onclick: () => sidebar.bringBack(id) }, "Bring it back");
    showState("This conversation was deleted", "It can be brought back for a while.", undo);
    sidebar.load();
  },
  onKept: putBack,
  giveBack: (text, how) => composer.giveBack(text, how),
};

/** A text that was not sent: into the field where its conversation is open, else its draft. @param {import("./drafts.js").Unsent} entry */
function putBack(entry) {
  if (!entry.text || entry.conversation !== composer.conversation) return toDraft(entry);
  composer.giveBack(entry.text, { always: true });
  dropUnsent(entry.key);
}

/** Opens a conversation, or the empty page for a new one. @param {string|null} id */
function go(id) {
  const hash = id ? `#${id}` : "";
  if (location.hash === hash) openFromHash();
  else location.hash = hash;
}

function openFromHash() {
  let wanted = location.hash.slice(1);
  try { wanted = decodeURIComponent(wanted); } catch { /* then it is no id */ }
  const id = wanted.toLowerCase();
  if (conversation && id && id === conversation.id && $("messages").dataset.state !== "gone") return;
  show(id || null);
}

/** @param {string|null} id */
function show(id) {
  leaveShown();
  if (NARROW.matches) setDrawer(false);
  conversation = new Conversation(id && ID.test(id) ? id : null, acts);
  $("messages").dataset.state = "";
  $("composer").hidden = false;
  sidebar.mark(id);
  composer.open(conversation.id);
  if (id && !ID.test(id)) return acts.onGone();
  if (id) {
    $("messages").append(el("p", { class: "quiet loading" }, "Loading…"));
    return conversation.refresh();
  }
  $("messages").append(el("div", { class: "empty" }, el("h2", {}, "A new conversation"),
    el("p", {}, "Write a message below. The answer streams in, and its plan shows what the model was given.")));
  $("composer-text").focus({ preventScroll: true });
}

/** Leaves the conversation that is shown; the field first, since what is left becomes its draft. */
function leaveShown() {
  composer.keep();
  conversation?.close();
  clearNotices();
}

/** A state instead of messages: what is the case, why, and the next step. */
function showState(title, why, ...next) {
  leaveShown();
  $("messages").replaceChildren(el("div", { class: "empty" }, el("h2", {}, title), el("p", {}, why),
    ...next, el("button", { type: "button", class: "button", onclick: () => go(null) }, "New conversation")));
  $("messages").dataset.state = "gone";
  $("composer").hidden = true;
}

/** Sends again what was not confirmed before the page was left: the same key, so nothing is stored twice. */
async function resume() {
  const unsent = await takeUnsent();
  for (const entry of unsent.filter((one) => one.conversation === conversation.id)) {
    const isMessage = entry.method === "POST" && entry.text;
    conversation.deliver(entry, isMessage ? conversation.transcript.say(entry.text) : null);
  }
  resumeElsewhere(unsent.filter((one) => one.conversation !== conversation.id));
}

/** The same for other conversations, in its order. @param {import("./drafts.js").Unsent[]} unsent */
async function resumeElsewhere(unsent) {
  for (const entry of unsent) {
    try {
      if (entry.waits && !entry.conversation) throw new Error("the conversation that it was meant for is not known");
      await persist(entry.method, entry.path, { body: entry.body, key: entry.key }, () => {});
      dropUnsent(entry.key);
      sidebar.load();
    } catch {
      putBack(entry);
    }
  }
}

/* Frame */

function signOut() {
  const text = $("composer-text").value;
  if (text.trim()) keepDraft(conversation?.id ?? null, text);
  location.assign(`/ui/login${wasSignedIn() ? "?ended" : ""}${location.hash}`);
}

async function leave() {
  await request("POST", "/ui/logout").catch(() => {});
  $("composer-text").value = "";
  forgetAll();
  noteSession(false);
  location.assign("/ui/login");
}

function setDrawer(isOpen) {
  document.body.classList.toggle("closed", !isOpen);
  $("drawer").setAttribute("aria-expanded", String(isOpen));
}

function onEscape(event) {
  if (event.key !== "Escape" || event.isComposing || event.target instanceof HTMLInputElement) return; // a search is emptied by it
  if (NARROW.matches && !document.body.classList.contains("closed")) {
    setDrawer(false);
    $("drawer").focus();
  } else {
    conversation.stopRunning();
  }
}

function bind() {
  $("new").addEventListener("click", () => go(null));
  $("drawer").addEventListener("click", () => setDrawer(document.body.classList.contains("closed")));
  $("veil").addEventListener("click", () => setDrawer(false));
  $("logout").addEventListener("click", leave);
  $("newest").addEventListener("click", () => conversation.transcript.stick(true));
  document.addEventListener("keydown", onEscape);
  window.addEventListener("hashchange", openFromHash);
  NARROW.addEventListener("change", () => setDrawer(!NARROW.matches));
}

async function start() {
  setDrawer(!NARROW.matches);
  holdTab();
  bind();
  openFromHash();
  sidebar.load();
  await resume();
  composer.reopen();
}

start();
