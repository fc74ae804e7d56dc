// The lists behind the figures.
import { el, number } from "./dom.js";
import { back, idOf, plain, span, state, stateOf, table, when } from "./ops_parts.js";

const turnLink = (id) => idOf(id, `#/turn/${id}`);

/** @param {Record<string, any>[]} services */
export function servicesList(services) {
  const rows = services.flatMap((one) => one.processes.map((process) => [
    plain(one.service), state(process.health), process.version, process.place, when(process.started_at),
    `${span(process.silent_s)} ago`, checks(process.checks), lag(process.lag),
  ]));
  const absent = services.filter((one) => !one.processes.length).map((one) => [plain(one.service), state("absent"), "", "", "", "", "No process has said for a quarter of an hour that it runs.", ""]);
  return page("Processes", "A process says every 5 s how it is. One that stopped without a word stays here as silent for a quarter of an hour.",
    table("Processes", [["service"], ["health"], ["version"], ["host and process"], ["started"], ["last heard"], ["checks", "wide"], ["behind", "number"]], [...rows, ...absent]));
}

function checks(told) {
  const ill = Object.entries(told).filter(([, check]) => check.state !== "ok");
  if (!ill.length) return `${Object.keys(told).length} well`;
  return ill.map(([name, check]) => `${name} ${check.state}${check.detail ? `: ${check.detail}` : ""}`).join("; ");
}

function lag(told) {
  return Object.entries(told).map(([topic, records]) => `${topic} ${number(records)}`).join(", ") || "0";
}

/** @param {{data: Record<string, any>[], dead: Record<string, any>[]}} told */
export function outboxList(told) {
  const waiting = told.data.length
    ? table("Events that wait", [["service"], ["topic"], ["event"], ["conversation"], ["bytes", "number"], ["waits", "number"]],
      told.data.map((row) => [plain(row.service), row.topic, row.type, searchLink(row.key), number(row.value_bytes), span(row.age_s)]))
    : el("p", {}, "No event waits: everything that was told has reached the broker.");
  const refused = told.dead.length
    ? [el("h2", {}, "Refused for good"), table("Refused for good", [["service"], ["topic"], ["event"], ["conversation"], ["since"], ["why", "wide"]],
      told.dead.map((row) => [plain(row.service), row.topic, row.type, searchLink(row.key), when(row.at), row.error]))]
    : [];
  return page("Events that wait for the broker", "They were told in a committed transaction. If they get old, Kafka is away or their service is.", waiting, ...refused);
}

function searchLink(text) {
  return idOf(text, `#/search?q=${encodeURIComponent(text)}`);
}

/** @param {Record<string, any>[]} letters @param {string|null} service */
export function lettersList(letters, service) {
  const shown = letters.filter((one) => !service || one.service === service);
  const what = service ? ` of ${plain(service)}` : "";
  if (!shown.length) return page(`No dead letters${what}`, "Every record that came could be handled, or its letter was handled since. Letters are kept for 14 days.");
  return page(`Dead letters${what}`, "Records that a service could not handle, the newest first. Their bytes are kept and never shown.",
    table("Dead letters", [["letter"], ["service"], ["topic"], ["record"], ["event"], ["reason"], ["set aside"], ["error", "wide"]],
      shown.map((row) => [idOf(row.id, `#/dead-letter/${row.id}`), plain(row.service), row.topic, `${row.partition}/${row.offset}`, row.event_type || "unreadable", row.reason, when(row.at), row.error])));
}

/** @param {{data: Record<string, any>[], work: Record<string, any>[]}} told */
export function leasesList(told) {
  const workers = told.data.length
    ? table("Workers", [["worker"], ["lease"], ["calls", "number"], ["oldest call"]],
      told.data.map((row) => [idOf(row.worker_id), row.left_s > 0 ? `for ${span(row.left_s)} more` : el("span", { class: "bad" }, `ran out ${span(-row.left_s)} ago`), number(row.running), when(row.oldest_claim)]))
    : el("p", {}, "No worker holds a lease, so no model can be called: llm gateway does not run.");
  const work = told.work.length
    ? table("Calls", [["turn"], ["state"], ["attempt", "number"], ["worker"], ["claimed"], ["last progress"], ["deadline"]],
      told.work.map((row) => [turnLink(row.turn_id), state(row.state), row.attempt, row.worker_id ? idOf(row.worker_id) : "", when(row.claimed_at), when(row.progressed_at), row.deadline_at.slice(11, 19)]))
    : el("p", { class: "quiet" }, "Nothing waits and nothing runs.");
  return page("Leases", "A worker that does not renew its lease is dead; its calls are taken over or ended with what was shown.", workers, el("h2", {}, "Calls of the model"), work);
}

const TABS = [["", "all"], ["open", "open"], ["queued", "queued"], ["generating", "generating"], ["completed", "completed"], ["partial", "partial"], ["failed", "failed"], ["cancelled", "cancelled"]];

/** @param {Record<string, any>[]} turns @param {string|null} status @param {string|null} reason */
export function turnsList(turns, status, reason) {
  const tabs = el("nav", { class: "tabs", "aria-label": "States" }, ...TABS.map(([key, word]) =>
    el("a", { href: key ? `#/turns?status=${key}` : "#/turns", "aria-current": (status || "") === key ? "page" : null }, word)));
  const title = `${status ? `Turns: ${status.replaceAll("_", " ")}` : "Turns"}${reason ? `, ${reason.replaceAll("_", " ")}` : ""}`;
  const list = turns.length ? turnTable(turns) : el("p", {}, "There are no such turns among those that are open or ended within a day.");
  return page(title, "Open turns, the oldest first; then those that ended, the newest first. At most 500.", tabs, list);
}

/** @param {Record<string, any>[]} turns */
export function turnTable(turns) {
  return table("Turns", [["turn"], ["state"], ["reason"], ["kind"], ["conversation"], ["accepted"], ["ended"]],
    turns.map((row) => [turnLink(row.turn_id), state(row.status), row.reason || "", row.kind, searchLink(row.conversation_id), when(row.created_at), when(row.ended_at)]));
}

/** @param {Record<string, any>[]} acts */
export function actsList(acts) {
  if (!acts.length) return page("Nobody did anything yet", "Every act of an operator leaves a row here: keys made and revoked, turns ended, dead letters handled again.");
  return page("What operators did", "The newest first. Acts through this page name the key, acts on the host the account.",
    table("Acts", [["when"], ["service"], ["act"], ["target"], ["who"]],
      acts.map((row) => [when(row.at), plain(row.service), row.action, searchLink(row.target_id), row.actor])));
}

/** @param {Record<string, any>} told @param {string} text */
export function found(told, text) {
  const parts = [];
  if (told.dead_letter) parts.push(el("p", {}, "It is a dead letter: ", idOf(told.dead_letter.id, `#/dead-letter/${told.dead_letter.id}`)));
  if (told.request) {
    const code = told.request.code ? ` (${told.request.code})` : "";
    parts.push(el("p", {}, "It is a request that was ", state(told.request.outcome), `${code}, `, when(told.request.decided_at), "."));
  }
  if (told.turns.length) parts.push(turnTable(told.turns));
  if (!parts.length) {
    return el("div", {}, back(), stateOf("Nothing has this name", el("code", {}, text),
      "It is no turn, no conversation, no request of the last day, no dead letter and no idempotency key of any turn that is still kept.",
      "Check that it is whole: ids have 36 characters."));
  }
  return page(`Found by ${text.slice(0, 40)}${text.length > 40 ? "…" : ""}`, "", ...parts);
}

function page(title, text, ...parts) {
  return el("div", {}, back(), el("h1", {}, title), text ? el("p", { class: "quiet" }, text) : null, ...parts);
}
