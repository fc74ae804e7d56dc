// Talks to the server: JSON requests, safe repeats, and the stream of a turn.
import { Parser } from "./sse.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;
const SILENCE_MS = 40_000; // two heartbeats and some: a connection that says less is dead

/** An answer that is a problem document, or no answer at all (status 0). */
export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || "The server did not answer.");
    this.status = status;
    this.code = document.code || "";
    this.requestId = document.request_id || "";
    this.retryable = status === 0 || document.retryable === true;
    this.retryAfterMs = 0;
  }
}

/** What a person reads about an error; the request id comes last. */
export function told(error) {
  const id = error.requestId ? ` (request ${error.requestId})` : "";
  return `${error.message}${id}`;
}

/** One request; resolves with the parsed body, or null where there is none. */
export async function request(method, path, { body, key, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (key) headers["Idempotency-Key"] = key;
  let answer;
  try {
    answer = await fetch(path, {
      method, headers, signal, credentials: "same-origin",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The server cannot be reached. Check the connection." });
  }
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  throw await problemOf(answer);
}

async function problemOf(answer) {
  const document = await answer.json().catch(() => ({ detail: `The server answered ${answer.status}.` }));
  const problem = new Problem(answer.status, document);
  problem.retryAfterMs = Number(answer.headers.get("retry-after-ms") || 0);
  return problem;
}

/** The same request again and again while that can help; the key makes every repeat safe. */
export async function persist(method, path, options, onWaiting) {
  for (let round = 0; ; round += 1) {
    try {
      return await request(method, path, options);
    } catch (error) {
      if (!error.retryable || error.status === 429) throw error;
      onWaiting(error);
      await pause(Math.max(error.retryAfterMs, backoff(round)), options.signal);
    }
  }
}

/**
 * Follows a turn's stream to its end, over any number of connections.
 *
 * onEvent(event) gets each event once, in order: {id, event, data}. onState("open" | "waiting")
 * tells how the connection is. Resolves after done, or when the signal is aborted.
 */
export async function follow(turnId, { onEvent, onState, signal }) {
  let last = null;
  for (let round = 0; !signal.aborted; round += 1) {
    try {
      const before = last;
      last = await once(turnId, last, { onState, signal, onEvent });
      if (last === "done") return;
      if (last !== before) round = 0;
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.code === "cursor-invalid") last = null; // begin again: the first event replaces all
      else if (error instanceof Problem && !error.retryable) throw error;
      if (error.lastId) { last = error.lastId; round = 0; }
    }
    onState("waiting");
    await pause(backoff(round), signal).catch(() => {});
  }
}

async function once(turnId, last, { onEvent, onState, signal }) {
  const connection = new AbortController();
  const stop = () => connection.abort();
  signal.addEventListener("abort", stop, { once: true });
  let timer = setTimeout(stop, SILENCE_MS);
  const headers = { Accept: "text/event-stream" };
  if (last) headers["Last-Event-ID"] = last;
  try {
    const answer = await fetch(`/v1/turns/${turnId}/events`, {
      headers, signal: connection.signal, credentials: "same-origin", cache: "no-store",
    });
    if (answer.status === 204) return "done";
    if (!answer.ok) throw await problemOf(answer);
    onState("open");
    const parser = new Parser();
    const reader = answer.body.getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return last;
      clearTimeout(timer);
      timer = setTimeout(stop, SILENCE_MS);
      for (const event of parser.feed(value)) {
        onEvent(event, last === null);
        last = event.id;
        if (event.event === "done") return "done";
      }
    }
  } catch (error) {
    if (signal.aborted) throw error;
    if (error instanceof Problem) throw error;
    const lost = new Error("the connection was lost");
    lost.lastId = last;
    throw lost;
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
    connection.abort();
  }
}

function backoff(round) {
  const full = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** round);
  return full * (0.5 + Math.random() / 2);
}

/** Waits; comes back early when the network returns. */
function pause(delayMs, signal) {
  return new Promise((resolve, reject) => {
    const end = (settle) => () => {
      clearTimeout(timer);
      window.removeEventListener("online", early);
      signal?.removeEventListener("abort", stopped);
      settle();
    };
    const early = end(resolve);
    const stopped = end(() => reject(new DOMException("aborted", "AbortError")));
    const timer = setTimeout(early, delayMs);
    window.addEventListener("online", early);
    signal?.addEventListener("abort", stopped);
    if (signal?.aborted) stopped();
  });
}
