// The text of one block beside the rows, with what is known of it.
import { request, told } from "./api.js";
import { copy, el, number, offscreen } from "./dom.js";
import { moment } from "./turn_times.js";
import { kindWord, leftOutWords, trustWord } from "./turn_words.js";

const FIRST_CHARACTERS = 20_000; // a longer text is laid out only when somebody wants all of it

export class Detail {
  /**
   * @param {{turnId: string, step: () => number|null, onClose: () => void, onError: (error: Error) => boolean}} parts
   */
  constructor(parts) {
    this.parts = parts;
    this.node = document.getElementById("detail");
    this.id = null;
    this.node.addEventListener("keydown", (event) => { if (event.key === "Escape") this.close(); });
  }

  /** Opens the text of a row. @param {any} row @param {any} plan @param {boolean} withFocus */
  async open(row, plan, withFocus) {
    this.id = row.id;
    const text = el("div", { class: "body" }, el("p", { class: "quiet" }, "Reading…"));
    const title = el("h2", { tabindex: "-1" }, titleOf(row));
    this.node.hidden = false;
    this.node.replaceChildren(
      el("div", { class: "top" }, title, el("button", { type: "button", class: "button icon", onclick: () => this.close() }, "✕", offscreen("Close"))),
      row.type === "out" ? outFacts(row.out) : blockFacts(row.block, plan), text);
    this.node.scrollTop = 0;
    if (withFocus) title.focus({ preventScroll: true });
    try {
      const step = this.parts.step();
      const query = new URLSearchParams({ id: row.id, ...(step ? { step: String(step) } : {}) });
      const found = await request("GET", `/v1/turns/${this.parts.turnId}/plan/text?${query}`);
      if (this.id === row.id) text.replaceChildren(...bodyOf(found));
    } catch (error) {
      if (this.id !== row.id || this.parts.onError(error)) return;
      text.replaceChildren(el("p", { class: "why" }, told(error)));
    }
  }

  close() {
    if (this.node.hidden) return;
    this.clear();
    this.parts.onClose();
  }

  clear() {
    this.id = null;
    this.node.hidden = true;
    this.node.replaceChildren();
  }
}

function titleOf(row) {
  if (row.type === "out") {
    const what = row.out.role === null ? row.id : row.out.role === "user" ? "Message" : "Answer";
    return row.out.seq === null ? what : `${what} ${number(row.out.seq)}`;
  }
  const word = kindWord(row.block);
  return `${word[0].toUpperCase()}${word.slice(1)}${row.block.seq === null ? "" : ` ${number(row.block.seq)}`}`;
}

function blockFacts(block, plan) {
  const whole = plan.budget?.used;
  return factList([
    ["Shown", `block ${number(plan.blocks.indexOf(block) + 1)} of ${number(plan.blocks.length)}, in ${block.layer}`],
    ["Whose words", trustWord(block.trust)], ["Source", block.source], ["Version", block.version],
    ["Said", moment(block.observed_at)],
    ["Tokens", `${number(block.tokens)}: ${number(block.token_offset + 1)} to ${number(block.token_offset + block.tokens)} of ${number(whole)}`],
    ["Score", block.score], ["Permission checked", moment(block.permission_checked_at)],
    ["Id", block.id],
  ]);
}

function outFacts(out) {
  const { word, sentence } = leftOutWords(out.reason);
  return el("div", {}, el("p", { class: "why" }, `Left out: ${word}. ${sentence}`), factList([
    ["State", out.status], ["Said", moment(out.said_at)],
    ["Tokens", out.tokens === null ? null : number(out.tokens)], ["Bytes", out.length === null ? null : number(out.length)], ["Id", out.id],
  ]));
}

function factList(rows) {
  const known = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", { class: "facts" }, ...known.flatMap(([name, value]) => [
    el("dt", {}, name), el("dd", { class: name === "Id" ? "mono" : null }, String(value)),
  ]));
}

function bodyOf(found) {
  if (found.text === null) {
    const why = found.missing === "deleted" ? "It was deleted since; only its size and place are kept." : "Its text is no longer stored.";
    return [el("p", { class: "why" }, why)];
  }
  const state = { true: "The text is the one that was sent.", false: "The text was changed since it was sent." }[String(found.is_as_sent)];
  const text = el("pre", { class: "text", tabindex: "0", "aria-label": "Text" }, found.text.slice(0, FIRST_CHARACTERS));
  const button = el("button", { type: "button", class: "button", onclick: () => copy(button, found.text) }, "Copy the text");
  const parts = [text, el("p", { class: "row-of-buttons" }, button)];
  if (found.text.length > FIRST_CHARACTERS) {
    const all = el("button", { type: "button", class: "button", onclick: () => { text.textContent = found.text; all.remove(); } },
      `Show all ${number(found.text.length)} characters`);
    parts[1].append(all);
  }
  if (found.text === "") parts[0].classList.add("none");
  if (state) parts.unshift(el("p", { class: found.is_as_sent ? "quiet" : "why" }, state));
  return parts;
}
