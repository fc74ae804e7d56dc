// The rows of a plan: every block and, in its place, what was left out. Only rows near the viewport
// are elements, so that ten thousand of them cost what fifty do.
import { ago, el, number } from "./dom.js";
import { moment } from "./turn_times.js";
import { kindWord, leftOutWords, trustWord } from "./turn_words.js";

const BEYOND = 12; // rows kept on both sides of the viewport, so that scrolling shows no gap
const FIRST_LEFT_OUT = 6; // nearest to what was kept; the rest is one click away
const MORE_LEFT_OUT = 100; // rows of one page of the interface
const MOST_EXCERPTS = 50; // of one request
const CALM_MS = 60; // rows that only fly by ask for nothing

const COLUMNS = [
  ["Section", "c-section"], ["Block", "c-block"], ["Trust", "c-trust"], ["Text", "c-text"], ["Source", "c-source"], ["Version", "c-version"],
  ["Said", "c-time"], ["Score", "c-score number"], ["Tokens", "c-tokens number"], ["Shown", "c-shown"],
];

/**
 * @typedef {{type: "block", id: string, block: any, place: number} | {type: "out", id: string, out: any}
 *   | {type: "older", id: string, left: number}} Row
 */

export class Blocks {
  /**
   * @param {{scroller: HTMLElement, nowMs: () => number, onOpen: (row: Row) => void,
   *   onStep: (row: Row) => void, loadOlder: () => Promise<void>,
   *   loadExcerpts: (ids: string[]) => Promise<{id: string, excerpt: string}[]>}} parts
   */
  constructor(parts) {
    this.parts = parts;
    /** @type {Row[]} */ this.rows = [];
    /** @type {Map<number, HTMLElement>} */ this.shown = new Map();
    this.plan = null;
    this.leftOut = { rows: [], total: null, next: null };
    this.openedTo = FIRST_LEFT_OUT;
    this.marks = new Map();
    /** @type {Map<string, string>} */ this.excerpts = new Map();
    this.calm = 0;
    this.current = null;
    this.height = 0;
    this.body = el("div", { role: "rowgroup", class: "rows" });
    this.table = el("div", { role: "table", id: "blocks", class: "blocks", "aria-label": "Blocks of the plan", tabindex: "-1" },
      el("div", { role: "rowgroup" }, el("div", { role: "row", class: "row head", "aria-rowindex": "1" },
        ...COLUMNS.map(([word, name]) => el("span", { role: "columnheader", class: name }, word)))),
      this.body);
    this.summary = el("span", { class: "quiet" });
    this.node = el("section", { "aria-labelledby": "blocks-title" },
      el("h2", { id: "blocks-title" }, "Blocks ", this.summary), this.table);
    this.body.addEventListener("keydown", (event) => this.onKey(event));
    this.body.addEventListener("click", (event) => this.onClick(event));
    parts.scroller.addEventListener("scroll", () => this.soon(), { passive: true });
    new ResizeObserver(() => { this.height = 0; this.draw(); }).observe(this.table);
  }

  /** @param {any} plan */
  setPlan(plan) {
    this.plan = plan;
    this.leftOut = { rows: [], total: null, next: null };
    this.openedTo = FIRST_LEFT_OUT;
    this.marks.clear();
    this.excerpts.clear();
    this.lay();
  }

  /** A page of what was left out, newest first. @param {any} page */
  addLeftOut(page) {
    this.leftOut.rows.push(...page.data);
    this.leftOut.next = page.next_below;
    if (page.total !== null) this.leftOut.total = page.total;
    this.lay();
  }

  /** Marks rows with a word of a comparison. @param {Map<string, string>} marks by id */
  setMarks(marks) {
    this.marks = marks;
    this.redraw();
  }

  /** The row with this id, if it is laid. @param {string} id */
  find(id) {
    return this.rows.find((row) => row.id === id) || null;
  }

  /** Brings a row into view and puts the focus on it. @param {string} id @param {boolean} centred */
  reveal(id, centred = true) {
    const index = this.rows.findIndex((row) => row.id === id);
    if (index >= 0) this.focus(index, centred);
    return index >= 0;
  }

  /** Brings a row into view, where the rows have less room now. @param {string} id */
  show(id) {
    const index = this.rows.findIndex((row) => row.id === id);
    if (index >= 0) this.scrollTo(index, false);
  }

  /** Says which row is open beside. @param {string|null} id */
  setCurrent(id) {
    this.current = id;
    this.redraw();
  }

  /** Decides which rows there are, in the order of the prompt. */
  lay() {
    const out = this.leftOut.rows.slice(0, this.openedTo).reverse();
    const hidden = (this.leftOut.total ?? this.leftOut.rows.length) - out.length;
    /** @type {Row[]} */ const rows = [];
    let next = 0;
    let opened = false;
    const emit = (below) => {
      if (!opened && hidden > 0) rows.push({ type: "older", id: "older", left: hidden });
      opened = true;
      while (next < out.length && (out[next].seq === null || out[next].seq < below)) rows.push({ type: "out", id: out[next].id, out: out[next++] });
    };
    (this.plan?.blocks || []).forEach((block, place) => {
      if (block.layer === "history" && block.seq !== null) emit(block.seq);
      if (block.layer === "current") emit(Infinity);
      rows.push({ type: "block", id: block.id, block, place });
    });
    emit(Infinity);
    this.rows = rows;
    const blocks = this.plan?.blocks?.length || 0;
    this.summary.textContent = `${number(blocks)} shown, ${this.leftOut.total === null ? "…" : number(this.leftOut.total)} left out`;
    this.table.setAttribute("aria-rowcount", String(rows.length + 1));
    this.redraw();
  }

  async older() {
    this.openedTo += this.openedTo === FIRST_LEFT_OUT ? MORE_LEFT_OUT - FIRST_LEFT_OUT : MORE_LEFT_OUT;
    const anchor = this.rows.findIndex((row) => row.type === "out");
    const { id } = this.rows[anchor];
    if (this.openedTo > this.leftOut.rows.length && this.leftOut.next !== null) await this.parts.loadOlder();
    else this.lay();
    // What was read stays where it was: older rows grow above it.
    this.parts.scroller.scrollTop += (this.rows.findIndex((row) => row.id === id) - anchor) * this.height;
    this.draw();
    if (!this.body.contains(document.activeElement)) this.reveal(id, false);
  }

  redraw() {
    const held = this.body.contains(document.activeElement) ? document.activeElement.closest(".row")?.dataset.id : null;
    for (const node of this.shown.values()) node.remove();
    this.shown.clear();
    this.draw();
    if (held) this.focusIn(this.rows.findIndex((row) => row.id === held));
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  draw() {
    if (!this.rows.length) { this.body.replaceChildren(); this.body.style.height = "0"; return; }
    if (!this.height) this.measure();
    const [first, last] = this.range();
    for (const [index, node] of this.shown) {
      if (index < first || index > last) { node.remove(); this.shown.delete(index); }
    }
    let before = null;
    for (let index = last; index >= first; index -= 1) {
      let node = this.shown.get(index);
      if (!node) {
        node = this.rowOf(index);
        this.shown.set(index, node);
        this.body.insertBefore(node, before);
      }
      before = node;
    }
    this.body.style.height = `${this.rows.length * this.height}px`;
    this.body.style.paddingTop = `${first * this.height}px`;
    clearTimeout(this.calm);
    this.calm = setTimeout(() => this.fill(), CALM_MS);
  }

  /** Asks how the texts of the rows begin that are there and have not been asked for. */
  async fill() {
    const ids = [...this.shown.keys()].map((index) => this.rows[index])
      .filter((row) => row && row.type !== "older" && !this.excerpts.has(row.id)).map((row) => row.id).slice(0, MOST_EXCERPTS);
    if (!ids.length) return;
    for (const id of ids) this.excerpts.set(id, "");
    const { plan } = this;
    const found = await this.parts.loadExcerpts(ids);
    if (plan !== this.plan) return;
    for (const { id, excerpt } of found) this.excerpts.set(id, excerpt);
    for (const node of this.shown.values()) {
      const cell = node.querySelector(".c-text");
      if (cell) cell.textContent = this.excerpts.get(node.dataset.id) || "";
    }
    this.fill();
  }

  range() {
    const { scroller } = this.parts;
    const top = this.body.getBoundingClientRect().top - scroller.getBoundingClientRect().top;
    const first = Math.floor(-top / this.height) - BEYOND;
    const last = Math.ceil((scroller.clientHeight - top) / this.height) + BEYOND;
    return [Math.min(Math.max(0, first), this.rows.length - 1), Math.max(0, Math.min(last, this.rows.length - 1))];
  }

  /** All rows are equally high; the style sheet decides how high, by the width. */
  measure() {
    const probe = this.rowOf(0);
    this.body.append(probe);
    this.height = probe.getBoundingClientRect().height || 36;
    probe.remove();
  }

  rowOf(index) {
    const row = this.rows[index];
    const node = row.type === "older" ? olderRow(row) : row.type === "out" ? this.outRow(row) : this.blockRow(row, index);
    node.setAttribute("aria-rowindex", String(index + 2));
    node.dataset.id = row.id;
    node.dataset.index = String(index);
    if (row.id === this.current) node.classList.add("open");
    return node;
  }

  blockRow({ block, id }, index) {
    const before = this.rows[index - 1];
    const again = before?.type === "block" && before.block.layer === block.layer;
    const mark = this.marks.get(id);
    const seq = block.seq === null ? "" : ` ${number(block.seq)}`;
    return line({ class: "row", "data-trust": block.trust }, {
      section: el("span", { class: again ? "again" : null }, block.layer),
      block: opener(`${kindWord(block)}${seq}`), trust: trustWord(block.trust),
      text: this.excerpts.get(id) || "",
      source: sourceWord(block.source), version: block.version || "",
      time: this.said(block.observed_at), score: block.score === null || block.score === undefined ? "" : block.score.toFixed(2),
      tokens: number(block.tokens), shown: [el("span", { class: "yes" }, "shown"), mark ? el("span", { class: "mark-word" }, mark) : null],
    });
  }

  outRow({ out, id }) {
    const { word, sentence } = leftOutWords(out.reason);
    const what = out.role === null ? out.id.split(":")[0].replaceAll("_", " ") : out.role === "user" ? "message" : "answer";
    const mark = this.marks.get(id);
    return line({ class: "row out", "data-trust": out.role === "assistant" ? "model" : out.role === "user" ? "user" : "data" }, {
      section: el("span", { class: "again" }, out.role === null ? "" : "history"),
      block: opener(`${what}${out.seq === null ? "" : ` ${number(out.seq)}`}`),
      trust: out.role === null ? "" : out.role === "user" ? "user" : "model",
      text: this.excerpts.get(id) || "",
      source: out.role === null ? "" : "messages", version: "", time: this.said(out.said_at), score: "",
      tokens: out.tokens === null ? "" : number(out.tokens), shown: [el("span", { class: "no", title: sentence }, word), mark ? el("span", { class: "mark-word" }, mark) : null],
    });
  }

  said(iso) {
    return iso ? el("time", { datetime: iso, title: moment(iso) }, ago(new Date(iso), this.parts.nowMs())) : "";
  }

  onClick(event) {
    const node = event.target.closest(".row");
    if (!node || window.getSelection()?.toString()) return;
    const row = this.rows[Number(node.dataset.index)];
    if (row.type === "older") { if (event.target.closest("button")) this.older(); return; }
    this.parts.onOpen(row);
  }

  onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    const node = event.target.closest(".row");
    if (!step || !node || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const index = Math.min(Math.max(0, Number(node.dataset.index) + step), this.rows.length - 1);
    this.focus(index, false);
    this.parts.onStep(this.rows[index]);
  }

  focus(index, centred) {
    this.scrollTo(index, centred);
    this.focusIn(index);
  }

  scrollTo(index, centred) {
    const { scroller } = this.parts;
    const top = this.body.getBoundingClientRect().top - scroller.getBoundingClientRect().top + index * this.height;
    const room = scroller.clientHeight - this.height;
    if (centred) scroller.scrollTop += top - room / 2;
    else if (top < this.height) scroller.scrollTop += top - this.height;
    else if (top > room) scroller.scrollTop += top - room;
    this.draw();
  }

  focusIn(index) {
    this.shown.get(index)?.querySelector("button")?.focus({ preventScroll: true });
  }
}

function line(attributes, cells) {
  const node = el("div", { role: "row", ...attributes });
  for (const [, name] of COLUMNS) {
    const cell = el("span", { role: "cell", class: name });
    const content = cells[name.split(" ")[0].slice(2)];
    cell.append(...[content].flat().filter((one) => one !== null && one !== undefined && one !== ""));
    node.append(cell);
  }
  return node;
}

function opener(word) {
  return el("button", { type: "button", class: "opener", "aria-controls": "detail" }, word);
}

function olderRow({ left }) {
  const more = Math.min(left, MORE_LEFT_OUT);
  const cell = el("span", { role: "cell", class: "c-wide" },
    el("button", { type: "button", class: "link" }, `Show ${number(more)} older`),
    left > more ? ` of ${number(left)} more that were left out` : left === 1 ? " one that was left out" : " ones that were left out");
  return el("div", { role: "row", class: "row out older" }, cell);
}

function sourceWord(source) {
  return String(source ?? "").replace("ingestion.messages", "messages").replace("context_assembly.instructions", "instructions");
}

