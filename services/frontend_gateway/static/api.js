// Talks to the server: JSON requests, safe repeats, and streams that survive lost connections.
import { Parser } from "./sse.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;
const SILENCE_MS = 40_000; // two heartbeats and some: a connection that says less is dead
const ANSWER_MS = 30_000; // longer than the server may take to decide: a connection that says nothing by then is dead
const WHOLE_MS = 120_000; // a page of long messages may take its time, but not for ever
// A browser allows six connections to a server for all tabs together: one that nobody looks at gives its own back.
const HIDDEN_MS = 10_000;

/** @typedef {{id: string, event: string, data: any}} StreamEvent */
/** @typedef {{body?: any, key?: string, signal?: AbortSignal}} RequestOptions */

/** An answer that is a problem document, or no answer at all (status 0). */
export class Problem extends Error {
  /** @param {number} status @param {Record<string, any>} document */
  constructor(status, document) {
    super(document.detail || "The server did not answer.");
    this.status = status;
    this.code = document.code || "";
    this.requestId = document.request_id || "";
    this.retryable = status === 0 || document.retryable === true;
    this.retryAfterMs = 0;
  }
}

/** What a person reads about an error; the request id comes last. @param {any} error */
export function told(error) {
  const id = error.requestId ? ` (request ${error.requestId})` : "";
  const text = String(error.message);
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${id}`;
}

let skewMs = 0; // what the server's clock says more than this machine's

/** Milliseconds of the server's clock: this machine's may be wrong by a day. */
export const now = () => Date.now() + skewMs;

/**
 * One request; resolves with the parsed body, or null where there is none.
 * @param {string} method @param {string} path @param {RequestOptions} [options]
 */
export async function request(method, path, { body, key, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (key) headers["Idempotency-Key"] = key;
  const connection = new AbortController();
  const stop = () => connection.abort();
  signal?.addEventListener("abort", stop);
  if (signal?.aborted) stop();
  let timer = setTimeout(stop, ANSWER_MS);
  try {
    const answer = await fetch(path, {
      method, headers, signal: connection.signal, credentials: "same-origin",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    clearTimeout(timer);
    timer = setTimeout(stop, WHOLE_MS);
    const date = Date.parse(answer.headers.get("date") || "");
    if (!Number.isNaN(date)) skewMs = date - Date.now();
    if (!answer.ok) throw await problemOf(answer);
    return answer.status === 204 ? null : await answer.json();
  } catch (error) {
    if (error instanceof Problem || signal?.aborted) throw error;
    throw new Problem(0, { detail: "The server cannot be reached. Check the connection." });
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", stop);
  }
}

/** @param {Response} answer */
async function problemOf(answer) {
  const document = await answer.json().catch(() => ({
    detail: `The server answered ${answer.status}.`, retryable: answer.status >= 500,
  }));
  const problem = new Problem(answer.status, document);
  problem.retryAfterMs = Number(answer.headers.get("retry-after-ms") || 0);
  return problem;
}

/**
 * The same request again and again while that can help; the key makes every repeat safe.
 * @param {string} method @param {string} path @param {RequestOptions} options
 * @param {(error: Problem) => void} onWaiting
 */
export async function persist(method, path, options, onWaiting) {
  for (let round = 0; ; round += 1) {
    try {
      return await request(method, path, options);
    } catch (error) {
      // An answer that is still open may take minutes, and whoever asks can stop it.
      if (!error.retryable || error.status === 429 || error.code === "turn-in-progress") throw error;
      onWaiting(error);
      await pause(Math.max(error.retryAfterMs, backoff(round)), options.signal);
    }
  }
}

/**
 * Follows a turn's stream to its end, over any number of connections.
 *
 * `onEvent(event, isFirst)` gets each event once, in order; with the first one everything is told
 * from the beginning. `onState("open" | "waiting")` tells how the connection is. Resolves after
 * `done`, or when the signal is aborted; rejects where the server says that it is of no use.
 * @param {string} turnId
 * @param {{onEvent: (event: StreamEvent, isFirst: boolean) => void,
 *          onState: (how: "open"|"waiting") => void, signal: AbortSignal}} listener
 */
export function follow(turnId, listener) {
  return listen(`/v1/turns/${turnId}/events`, listener, "done");
}

/**
 * Follows what goes on in a conversation; each connection begins with the event `state`.
 * @param {string} conversationId
 * @param {{onEvent: (event: StreamEvent, isFirst: boolean) => void,
 *          onState: (how: "open"|"waiting") => void, signal: AbortSignal}} listener
 */
export function watch(conversationId, listener) {
  return listen(`/v1/conversations/${conversationId}/events`, listener, "conversation_deleted");
}

async function listen(path, { onEvent, onState, signal }, lastEvent) {
  const place = { last: null, isOver: false, isReleased: false };
  for (let round = 0; !signal.aborted && !place.isOver; round += 1) {
    const before = place.last;
    try {
      await seen(signal);
      await once(path, place, { onEvent, onState, signal }, lastEvent);
    } catch (error) {
      if (error.name === "AbortError" && signal.aborted) return;
      if (error.code === "cursor-invalid") place.last = null; // begin again: the first event replaces all
      else if (error instanceof Problem && !error.retryable) throw error;
    }
    if (place.isOver || signal.aborted) return;
    if (place.isReleased || place.last !== before) round = 0;
    if (place.isReleased) continue;
    onState("waiting");
    await pause(backoff(round), signal).catch(() => {});
  }
}

/** One connection; leaves in `place` how far it came. */
async function once(path, place, { onEvent, onState, signal }, lastEvent) {
  const connection = new AbortController();
  const stop = () => connection.abort();
  signal.addEventListener("abort", stop, { once: true });
  let timer = setTimeout(stop, SILENCE_MS);
  place.isReleased = false;
  const forgetHidden = whenHidden(() => { place.isReleased = true; stop(); });
  const headers = { Accept: "text/event-stream" };
  if (place.last) headers["Last-Event-ID"] = place.last;
  try {
    const answer = await fetch(path, {
      headers, signal: connection.signal, credentials: "same-origin", cache: "no-store",
    });
    if (answer.status === 204) { place.isOver = true; return; }
    if (!answer.ok) throw await problemOf(answer);
    onState("open");
    const parser = new Parser();
    const reader = answer.body.getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(stop, SILENCE_MS);
      for (const event of parser.feed(value)) {
        onEvent(event, place.last === null);
        place.last = event.id || null;
        if (event.event === lastEvent) { place.isOver = true; return; }
      }
    }
  } finally {
    clearTimeout(timer);
    forgetHidden();
    signal.removeEventListener("abort", stop);
    connection.abort();
  }
}

/** Calls once the page has been hidden for a while; returns what ends the waiting. */
function whenHidden(act) {
  let timer = 0;
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(act, HIDDEN_MS);
  };
  document.addEventListener("visibilitychange", look);
  look();
  return () => { clearTimeout(timer); document.removeEventListener("visibilitychange", look); };
}

/** Resolves once somebody can see the page, or the signal is aborted. */
function seen(signal) {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look, { once: true });
  });
}

/** Pause before the next try, in milliseconds; at random, so that many pages do not come at once. */
export function backoff(round) {
  const full = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** round);
  return full * (0.5 + Math.random() / 2);
}

/** Waits; comes back early when the network returns or the page is looked at again. */
export function pause(delayMs, signal) {
  return new Promise((resolve, reject) => {
    const end = (settle) => () => {
      clearTimeout(timer);
      window.removeEventListener("online", early);
      document.removeEventListener("visibilitychange", early);
      signal?.removeEventListener("abort", stopped);
      settle();
    };
    const early = end(resolve);
    const stopped = end(() => reject(new DOMException("aborted", "AbortError")));
    const timer = setTimeout(early, delayMs);
    window.addEventListener("online", early);
    document.addEventListener("visibilitychange", early);
    signal?.addEventListener("abort", stopped);
    if (signal?.aborted) stopped();
  });
}
