// What every part of the operator's view is made of: ids, ages, states, figures and tables.
import { now } from "./api.js";
import { ago, copy, duration, el, number } from "./dom.js";

const SHORT = 8; // characters of an id; the whole one is in the title and on the clipboard

const TONES = {
  completed: "ok", ready: "ok", handled: "ok",
  partial: "warn", degraded: "warn", "not ready": "warn", waiting_for_tool: "warn",
  failed: "bad", silent: "bad", absent: "bad",
  cancelled: "idle", queued: "idle", pending: "idle", generating: "wire", accepted: "ok",
};

/** The colour that goes with a word; every word says itself what it means. @param {string} word */
export const tone = (word) => TONES[word] || "";

/** A state as a word in its colour. @param {string} word */
export const state = (word) => el("span", { class: tone(word) }, word.replaceAll("_", " "));

/** A service's name as a person reads it. @param {string} name */
export const plain = (name) => name.replaceAll("_", " ").replace("llm", "LLM");

/** A number with its word, which is the second one for all numbers but 1. */
export const count = (value, one, many) => `${number(value)} ${value === 1 ? one : many}`;

/** A text of the server's with the commands in it set as such. @param {string} text */
export function withCode(text) {
  return text.split("`").map((piece, n) => (n % 2 ? el("code", {}, piece) : piece));
}

/**
 * An id, shortened; a click copies it, or opens what it names.
 * @param {string} id @param {string} [href]
 */
export function idOf(id, href) {
  const text = id.slice(0, SHORT);
  if (href) return el("a", { class: "id", href, title: id }, text);
  const button = el("button", { class: "id", type: "button", title: `${id}: copy it` }, text);
  button.addEventListener("click", () => copy(button, id));
  return button;
}

/** When something was, as a person says it. @param {string|null} at */
export function when(at) {
  if (!at) return el("span", {}, "");
  return el("time", { datetime: at, title: at }, ago(new Date(at), now()));
}

/** Seconds with three significant digits, or as minutes, hours and days. @param {number} seconds */
export function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 100) return duration(s * 1000);
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(s % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/**
 * One figure of the wall: a link to the list behind it.
 * @param {{label: string, value: number|string, note?: string, href: string, tone?: string, isWord?: boolean}} figure
 */
export function figure({ label, value, note = "", href, tone: colour = "", isWord = false }) {
  const shown = typeof value === "number" ? number(value) : value;
  return el("li", {},
    el("a", { class: "figure", href, "data-key": `${label} ${href}` },
      el("span", { class: "label" }, label),
      el("span", { class: `value ${colour}${isWord ? " word" : ""}` }, shown),
      el("span", { class: "note" }, note)));
}

/** Figures under a heading. @param {string} title @param {HTMLElement[]} figures */
export function section(title, figures) {
  return el("section", {}, el("h2", {}, title), el("ul", { class: "wall" }, ...figures));
}

/**
 * A table that scrolls inside itself where the page is narrow.
 * @param {string} caption @param {[string, string?][]} columns name and class
 * @param {(Node|string|number|null)[][]} rows
 */
export function table(caption, columns, rows) {
  const head = el("tr", {}, ...columns.map(([name, kind]) => el("th", { scope: "col", class: kind }, name)));
  const body = rows.map((row) => el("tr", {}, ...row.map((cell, n) => el("td", { class: columns[n][1] }, cell))));
  return el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    el("table", { class: "list" },
      el("caption", { class: "offscreen" }, caption), el("thead", {}, head), el("tbody", {}, ...body)));
}

/** What is the case, why, and the next step. @param {string} title @param {...(Node|string)} texts */
export function stateOf(title, ...texts) {
  return el("div", { class: "state" }, el("h1", {}, title), ...texts.map((text) => el("p", {}, text)));
}

/** The way back to the wall. */
export const back = () => el("p", { class: "back-row" }, el("a", { class: "back", href: "#/" }, "All figures"));
