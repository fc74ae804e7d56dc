// One turn over all services, downwards in time; and one dead letter.
import { el, number } from "./dom.js";
import { actsOf } from "./ops_acts.js";
import { back, idOf, plain, span, tone, when, withCode } from "./ops_parts.js";

const LONG_S = 1; // a gap below it is nobody's wait

/** @param {Record<string, any>} told @param {() => void} onDone */
export function story(told, onDone) {
  const turn = told.turn;
  const acts = actsFor(told);
  return el("article", { class: "story" }, back(),
    el("h1", {}, el("span", { class: tone(turn.status) }, sign(turn.status)), ` ${told.sentence}`),
    el("p", { class: "why" }, ...withCode(told.why)),
    el("p", { class: "next" }, ...withCode(told.next_step)),
    facts([
      ["turn", idOf(turn.turn_id)],
      ["conversation", idOf(turn.conversation_id, `#/search?q=${turn.conversation_id}`)],
      ["request", idOf(turn.request_id)],
      ["key", turn.key],
      ["tenant", idOf(turn.tenant_id)],
      ["trace", turn.trace_id ? idOf(turn.trace_id) : null],
      ["model", turn.model],
      ["follows", turn.parent_turn_id ? idOf(turn.parent_turn_id, `#/turn/${turn.parent_turn_id}`) : null],
      ["answer", turn.length === null ? null : `${number(turn.length)} bytes`],
      ["tokens", turn.usage ? `${number(turn.usage.input)} in, ${number(turn.usage.output)} out` : null],
    ]),
    acts.length ? actsOf(acts, onDone) : null,
    el("h2", {}, `${told.lines.length} events, by the database's clock (UTC)`),
    lines(told.lines),
    ...told.dead_letters.map((letter) => el("p", {}, "Set aside on its way: ", idOf(letter.id, `#/dead-letter/${letter.id}`), ` of ${letter.topic}`)));
}

const SIGNS = { completed: "●", partial: "◐", failed: "✕", cancelled: "✕", queued: "○", pending: "○" };
const sign = (status) => SIGNS[status] || "◌";

function actsFor(told) {
  const path = `/v1/ops/turns/${told.turn.turn_id}`;
  const names = {
    reap: { name: "End it with what was shown…", path: `${path}/reap`, body: {} },
    end: { name: "End it without an answer…", path: `${path}/end`, body: {}, hasReason: true },
  };
  return ["reap", "end"].filter((act) => told.may.includes(act)).map((act) => names[act]);
}

function facts(pairs) {
  return el("dl", { class: "facts" }, ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", { class: "mono" }, value))));
}

function lines(rows) {
  const longest = rows.reduce((most, row) => Math.max(most, row.gap_s || 0), 0);
  return el("ol", { class: "lines" }, ...rows.map((row) => {
    const isLongest = longest >= LONG_S && row.gap_s === longest;
    const gap = row.gap_s === null ? "" : `+${span(row.gap_s)}`;
    return el("li", { class: isLongest ? "longest" : null },
      el("time", { class: "at", datetime: row.at, title: row.at }, row.at.slice(11, 23)),
      el("span", { class: "gap", title: "since the line before" }, gap, isLongest ? el("span", { class: "offscreen" }, ", the longest wait") : null),
      el("span", { class: "service" }, plain(row.service)),
      el("div", { class: "body" },
        el("span", { class: `what ${lineTone(row)}` }, row.what),
        row.detail ? el("span", { class: "detail" }, ` · ${row.detail}`) : null,
        isLongest ? el("span", { class: "warn" }, " · the longest wait came before this") : null,
        names(row.ids)));
  }));
}

function lineTone(row) {
  if (row.kind === "dead_letter") return "bad";
  return tone(row.what.replace("turn is ", ""));
}

function names(ids) {
  const shown = Object.entries(ids).filter(([name]) => name !== "attempt");
  if (!shown.length) return null;
  return el("div", { class: "names" }, ...shown.map(([name, id]) => {
    const href = name === "dead_letter_id" ? `#/dead-letter/${id}` : undefined;
    return el("span", {}, `${name.replace("_id", "").replace("_", " ")} `, idOf(String(id), href));
  }));
}

/** @param {Record<string, any>} letter @param {() => void} onDone */
export function deadLetter(letter, onDone) {
  const act = { name: "Handle it again…", path: `/v1/ops/dead-letters/${letter.id}/redrive`, body: { service: letter.service } };
  return el("article", { class: "story" },
    el("p", { class: "back-row" }, el("a", { class: "back", href: "#/dead-letters" }, "Dead letters")),
    el("h1", {}, `${plain(letter.service)} set aside a record of ${letter.topic}: ${letter.reason}`),
    el("p", { class: "why" }, letter.error),
    el("p", { class: "next" }, letter.is_asked
      ? "It is being handled again; look again in a few seconds."
      : "Handle it again once its cause is gone: a newer release, a door key that works, a database that is well. Its own inbox decides whether it still has an effect, and a turn that ended stays ended."),
    facts([
      ["letter", idOf(letter.id)], ["record", `${letter.offset} of partition ${letter.partition}`], ["consumer", letter.consumer],
      ["event", letter.event_type || "unreadable"], ["event id", letter.event_id ? idOf(letter.event_id) : null],
      ["conversation", letter.conversation_id ? idOf(letter.conversation_id, `#/search?q=${letter.conversation_id}`) : null],
      ["tried", `${letter.attempts} times`], ["size", letter.value_bytes === null ? "not kept" : `${number(letter.value_bytes)} bytes`],
      ["sha-256", letter.value_sha256 ? idOf(letter.value_sha256) : null], ["set aside", when(letter.at)],
    ]),
    letter.is_asked ? null : actsOf([act], onDone));
}
