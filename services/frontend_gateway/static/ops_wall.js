// The wall: small true numbers, each a link to the list behind it.
import { el, number } from "./dom.js";
import { count, figure, plain, section, span, tone } from "./ops_parts.js";

const OLD_S = 60; // an event that waits for longer than this is not on its way
const ORDER = ["queued", "pending", "generating", "waiting_for_tool"];

/** @param {Record<string, any>} told */
export function wall(told) {
  return el("div", {},
    el("h1", {}, headline(told)),
    el("p", { class: "quiet clock" }, `At ${told.at.slice(11, 19)} UTC by the database's clock; read again every 5 s.`),
    el("div", { class: "walls" }, ...sections(told)),
    el("p", {}, el("a", { href: "#/acts" }, "What operators did")));
}

/** All sections, each as wide as the number of its figures asks for. */
function sections(told) {
  const sized = (size, node) => { node.classList.add(size); return node; };
  return [
    sized("whole", section("Services", told.services.map(service))),
    section("Waiting for the broker", told.outbox.map(outbox)),
    section("Dead letters", told.dead_letters.map(letters)),
    sized("two", section("Leases of the model's callers", leases(told.leases))),
    sized("four", section("Turns now", openTurns(told.turns))),
    sized("whole", endedTurns(told)),
  ];
}

/** The answer first. @param {Record<string, any>} told */
function headline(told) {
  const wrong = told.services.filter((one) => !["ready", "degraded"].includes(one.health));
  const parts = [];
  if (wrong.length) parts.push(`${wrong.map((one) => `${plain(one.service)} is ${one.health}`).join(", ")}`);
  const set = sum(told.dead_letters, "letters");
  if (set) parts.push(count(set, "record is a dead letter", "records are dead letters"));
  if (told.leases.orphaned) parts.push(count(told.leases.orphaned, "call lost its worker", "calls lost their worker"));
  const late = told.outbox.filter((one) => one.oldest_s > OLD_S);
  if (late.length) parts.push(`events of ${late.map((one) => plain(one.service)).join(" and ")} do not reach the broker`);
  if (!parts.length) return "All services work, and nothing waits for you.";
  const text = parts.join("; ");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

const sum = (rows, name) => rows.reduce((total, row) => total + row[name], 0);

function service(one) {
  const lag = one.lag === null ? "lag unknown" : one.service === "frontend_gateway" ? "consumes nothing" : `${number(one.lag)} behind`;
  const silent = one.silent ? `, ${one.silent} silent` : "";
  const versions = one.versions.length ? `${one.versions.join(" and ")}, ` : "";
  return figure({
    label: plain(one.service), value: one.health, isWord: true, tone: tone(one.health), href: "#/services",
    note: `${versions}${one.running} running${silent}, ${lag}`,
  });
}

function outbox(one) {
  return figure({
    label: plain(one.service), value: one.pending, href: "#/outbox",
    tone: one.oldest_s > OLD_S || one.dead ? "warn" : "",
    note: one.dead ? `${one.dead} refused for good` : one.pending ? `oldest waits ${span(one.oldest_s)}` : "nothing waits",
  });
}

function letters(one) {
  return figure({
    label: plain(one.service), value: one.letters, href: `#/dead-letters?service=${one.service}`,
    tone: one.letters ? "warn" : "",
    note: one.letters ? `oldest ${span(one.oldest_s)}${one.asked ? `, ${one.asked} under way` : ""}` : "none",
  });
}

function leases(told) {
  return [
    figure({ label: "leases held", value: told.held, href: "#/leases", note: count(told.running, "call runs", "calls run") }),
    figure({
      label: "leases run out", value: told.run_out, href: "#/leases", tone: told.orphaned ? "bad" : "",
      note: told.orphaned ? count(told.orphaned, "call is taken over", "calls are taken over") : "no call is lost",
    }),
  ];
}

function openTurns(rows) {
  const found = new Map(rows.filter((row) => row.is_open).map((row) => [row.status, row]));
  return ORDER.map((status) => {
    const row = found.get(status);
    return figure({
      label: status.replaceAll("_", " "), value: row ? row.turns : 0, href: `#/turns?status=${status}`,
      note: row ? `oldest ${span(row.oldest_s)}` : "none",
    });
  });
}

function endedTurns(told) {
  const rows = told.turns.filter((row) => !row.is_open);
  const title = `Ended turns among the newest ${number(told.counted_among)} of the last day`;
  if (!rows.length) return el("section", {}, el("h2", {}, title), el("p", { class: "quiet" }, "None yet. They stand here once a turn has ended."));
  return section(title, rows.map((row) => {
    const query = new URLSearchParams({ status: row.status, ...(row.reason ? { reason: row.reason } : {}) });
    return figure({
      label: `${row.status}${row.reason ? `: ${row.reason.replaceAll("_", " ")}` : ""}`, value: row.turns,
      href: `#/turns?${query}`, tone: row.status === "completed" ? "" : tone(row.status), note: `newest ${span(row.newest_s)} ago`,
    });
  }));
}
