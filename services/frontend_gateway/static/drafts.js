// What was written and not sent, and what was sent and not confirmed: both survive a reload.

const DRAFT = "turnwire.draft.";
const UNSENT = "turnwire.unsent";
const TAB = "turnwire.tab";
const SESSION = "turnwire.session";
const MAX_DRAFTS = 50;
const MAX_UNSENT = 20;
const MAX_DRAFT_CHARACTERS = 300_000; // above the longest message; the store of a browser holds 5 MB
const KEY_LIFETIME_MS = 20 * 3600_000; // the server knows a key for 24 hours; the rest is for clocks

/**
 * A request that is owed an answer of the server. Its key makes every repeat safe.
 * One that `waits` was never sent: where it goes is decided when the one before it is. One that
 * `isRefused` is a text and nothing else.
 * @typedef {{key: string, tab: string, at: number, conversation: string|null, text: string,
 *            method: string, path: string, body: any, waits?: boolean, isRefused?: boolean}} Unsent
 */

/** @param {string|null} conversation */
export function draftOf(conversation) {
  return read(DRAFT + (conversation ?? "new"))?.text ?? "";
}

/** @param {string|null} conversation @param {string} text */
export function keepDraft(conversation, text) {
  const name = DRAFT + (conversation ?? "new");
  if (!text.trim() || text.length > MAX_DRAFT_CHARACTERS) return void localStorage.removeItem(name);
  write(name, { at: Date.now(), text });
  const names = namesOf(DRAFT);
  if (names.length <= MAX_DRAFTS) return;
  names.sort((a, b) => (read(a)?.at ?? 0) - (read(b)?.at ?? 0));
  for (const old of names.slice(0, names.length - MAX_DRAFTS)) localStorage.removeItem(old);
}

/** This tab's name: it stays over a reload, and no other tab has it. */
export function tabId() {
  let id = sessionStorage.getItem(TAB);
  if (!id) {
    id = newKey();
    sessionStorage.setItem(TAB, id);
  }
  return id;
}

/** Lets other tabs see that this one is open, as long as it is. */
export function holdTab() {
  navigator.locks?.request(`${TAB}.${tabId()}`, { ifAvailable: true }, (lock) => (lock ? new Promise(() => {}) : null));
}

/** Keeps a request, in its place among the others. @param {Unsent} entry */
export function keepUnsent(entry) {
  const all = allUnsent();
  const place = all.findIndex((one) => one.key === entry.key);
  all.splice(place < 0 ? all.length : place, 1, entry);
  write(UNSENT, all.slice(-MAX_UNSENT));
}

/** @param {string} key */
export function dropUnsent(key) {
  write(UNSENT, allUnsent().filter((one) => one.key !== key));
}

/**
 * What this tab, or a tab that was closed, did not see confirmed. Entries that were refused, or
 * whose key the server may have forgotten, are not sent again: they become drafts.
 * @returns {Promise<Unsent[]>}
 */
export async function takeUnsent() {
  const open = new Set((await navigator.locks?.query())?.held?.map((lock) => lock.name) ?? []);
  const mine = allUnsent().filter((one) => one.tab === tabId() || (navigator.locks && !open.has(`${TAB}.${one.tab}`)));
  const [fresh, old] = [[], []];
  for (const one of mine) (!one.isRefused && Math.abs(Date.now() - one.at) < KEY_LIFETIME_MS ? fresh : old).push(one);
  for (const one of old) toDraft(one);
  for (const one of fresh) keepUnsent({ ...one, tab: tabId() });
  return fresh;
}

/** Makes drafts of all that was not confirmed: whoever signs in next may be somebody else. */
export function holdUnsent() {
  for (const one of allUnsent()) toDraft(one);
}

/** Remembers whether somebody is signed in, so that the page can say that this has ended. */
export function noteSession(isOpen) {
  if (isOpen) write(SESSION, true);
  else localStorage.removeItem(SESSION);
}

export const wasSignedIn = () => read(SESSION) === true;

/** Forgets everything that somebody wrote here. */
export function forgetAll() {
  for (const name of [UNSENT, ...namesOf(DRAFT)]) localStorage.removeItem(name);
}

/** A fresh idempotency key. */
export function newKey() {
  if (crypto.randomUUID) return crypto.randomUUID();
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {Unsent} entry */
export function toDraft(entry) {
  const draft = draftOf(entry.conversation);
  if (entry.text) keepDraft(entry.conversation, draft ? `${draft}\n\n${entry.text}` : entry.text);
  dropUnsent(entry.key);
}

/** @returns {Unsent[]} */
function allUnsent() {
  const found = read(UNSENT);
  return Array.isArray(found) ? found.filter((one) => one && typeof one.key === "string") : [];
}

function namesOf(prefix) {
  return Object.keys(localStorage).filter((name) => name.startsWith(prefix));
}

function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name) ?? "null");
  } catch {
    return null;
  }
}

function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch { /* the store is full or closed: what is written stays on the page */ }
}
