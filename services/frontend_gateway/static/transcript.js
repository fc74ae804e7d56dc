// The messages of the shown branch, in order; keeps what is on the page when the server's list changes.
import { $, el } from "./dom.js";
import { Answer } from "./answer.js";
import { Question } from "./question.js";

const NEAR_END = 48; // pixels from the end where somebody who comes down reads the newest again
const AT_END = 2; // pixels; less is rounding

export class Transcript {
  /**
   * @param {import("./answer.js").Acts & import("./question.js").QuestionActs} acts
   * @param {AbortSignal} signal the page of this conversation
   */
  constructor(acts, signal) {
    this.acts = acts;
    this.signal = signal;
    /** @type {(Question|Answer)[]} */
    this.items = [];
    this.isSticking = true;
    this.last = { top: 0, height: 0 }; // where the page stood when it was looked at last
    this.box = $("messages");
    this.box.replaceChildren();
    this.earlier = null;
    this.seen = new IntersectionObserver((entries) => this.onSeen(entries));
    const scroll = $("scroll");
    scroll.addEventListener("scroll", () => this.onScroll(), { signal, passive: true });
    const size = new ResizeObserver(() => this.stick()); // of the window, the field below, or a line under an answer
    size.observe(scroll);
    size.observe(this.box);
    signal.addEventListener("abort", () => { size.disconnect(); this.seen.disconnect(); }, { once: true });
  }

  /** @returns {Answer[]} */
  get answers() { return /** @type {Answer[]} */ (this.items.filter((one) => one instanceof Answer)); }

  get open() { return this.answers.filter((one) => !one.isOver); }

  get lastQuestion() {
    return this.items.filter((one) => one instanceof Question && !one.isUnsent).at(-1) ?? null;
  }

  /** @param {string} turnId */
  answerOf(turnId) { return this.answers.find((one) => one.turnId === turnId) ?? null; }

  /**
   * Shows the newest messages as the server lists them, oldest first.
   * @param {any[]} rows @param {{isWhole: boolean, keepsOlder: boolean}} about whether nothing stands
   *   before the rows, and whether older messages on the page belong to the same branch
   * @returns {boolean} whether older messages stay on the page
   */
  reconcile(rows, { isWhole, keepsOlder }) {
    const known = new Map(this.items.map((one) => [one.id, one]));
    // Without a row that is on the page already, others may be missing between its rows and these.
    const isJoined = keepsOlder && !isWhole && rows.some((row) => known.has(row.id));
    const older = isJoined ? this.items.filter((one) => one.id && one.seq < rows[0].seq) : [];
    const unsent = this.items.filter((one) => one instanceof Question && one.isUnsent);
    const shown = rows.map((row) => {
      const item = known.get(row.id) ?? this.make(row);
      item.update(row);
      return item;
    });
    this.place([...older, ...shown, ...unsent]);
    if (isWhole && this.earlier) this.offerEarlier(null);
    if (this.items.length > 0) return older.length > 0;
    this.box.replaceChildren(el("div", { class: "empty" }, el("h2", {}, "Nothing was said here yet"),
      el("p", {}, "Write a message below to begin.")));
    return false;
  }

  /** Puts older messages before those on the page, without moving what is read. */
  prepend(rows) {
    const top = this.items[0]?.node;
    const before = top?.getBoundingClientRect().top ?? 0;
    const scroll = $("scroll");
    scroll.classList.add("unanchored");
    this.isSticking = false;
    this.place([...rows.map((row) => this.make(row)), ...this.items]);
    if (top) scroll.scrollTop += top.getBoundingClientRect().top - before;
    requestAnimationFrame(() => scroll.classList.remove("unanchored"));
  }

  /** A message that is about to be sent. @param {string} text */
  say(text) {
    const question = new Question({ id: "", content: text, turn_id: null, seq: Infinity }, this.acts);
    this.place([...this.items, question]);
    this.stick(true);
    return question;
  }

  /** @param {Question|Answer} item */
  remove(item) { this.place(this.items.filter((one) => one !== item)); }

  /** @param {any} row an answer that was just accepted @param {number} sentAt */
  expect(row, sentAt) {
    const known = this.answerOf(row.turn_id);
    if (known) return known;
    const answer = new Answer(row, this.acts, this.signal);
    Object.assign(answer, { sentAt, isAwaited: true });
    // Messages that were sent after its own may wait for the server still.
    this.place([...this.items, answer].sort((one, other) => (one.seq === other.seq ? 0 : one.seq - other.seq)));
    return answer;
  }

  /** @param {Map<number, HTMLElement>} switches versions by the seq where they part */
  offerVersions(switches) {
    const found = new Map();
    for (const [seq, node] of switches) {
      const index = this.items.findIndex((one) => one.seq >= seq);
      const isKnown = index > 0 || (index === 0 && (!this.earlier || this.items[0].seq === seq));
      if (index >= 0 && isKnown) found.set(this.items[index], node);
    }
    for (const item of this.items) {
      if (item.switch === null && !found.has(item)) continue;
      item.switch = found.get(item) ?? null;
      item.draw();
    }
  }

  /** @param {(() => void)|null} act what loads older messages; null where there are none */
  offerEarlier(act) {
    if (act && this.earlier) return;
    if (this.earlier && this.earlier === document.activeElement) $("scroll").focus({ preventScroll: true });
    this.earlier?.remove();
    this.earlier = act && el("button", { type: "button", class: "link earlier", onclick: act }, "Show earlier messages");
    if (this.earlier) this.box.prepend(this.earlier);
  }

  /** Reads the newest, if that is what was read, or in any case. */
  stick(always = false) {
    if (always) this.isSticking = true;
    const scroll = $("scroll");
    if (this.isSticking && !this.signal.aborted) {
      scroll.scrollTop = scroll.scrollHeight;
      this.last = { top: scroll.scrollTop, height: scroll.scrollHeight };
    }
    $("newest").hidden = this.isSticking;
  }

  make(row) {
    if (row.role === "user") return new Question(row, this.acts);
    const answer = new Answer(row, this.acts, this.signal);
    if (answer.isOver) this.seen.observe(answer.node);
    return answer;
  }

  /** Makes the page show these items in this order, touching only what changed. */
  place(items) {
    const kept = new Set(items);
    for (const old of this.items) if (!kept.has(old)) this.drop(old);
    this.items = items;
    const open = this.open;
    items.forEach((item, index) => {
      const next = items[index + 1];
      if (item instanceof Answer) this.note(item, next, open);
      const after = index === 0 ? this.earlier : items[index - 1].node;
      const here = after ? after.nextSibling : this.box.firstChild;
      if (here !== item.node) this.box.insertBefore(item.node, here);
    });
    this.box.querySelector(":scope > .empty, :scope > .loading")?.remove();
    this.stick();
  }

  /** @param {Question|Answer} item */
  drop(item) {
    if (item.node.contains(document.activeElement)) $("scroll").focus({ preventScroll: true });
    item.node.remove();
    if (item instanceof Answer) item.leave();
    else if (item.unsaid) this.acts.giveBack(item.unsaid);
  }

  /** What an answer cannot know by itself: how many are before it, and whether it is gone on from. */
  note(answer, next, open) {
    const ahead = answer.isOver ? null : open.indexOf(answer);
    const isContinued = next instanceof Answer && next.kind === "continue";
    if (answer.ahead === ahead && answer.isContinued === isContinued) return;
    Object.assign(answer, { ahead, isContinued });
    answer.draw();
  }

  /** Counts the open answers anew. */
  recount() {
    const open = this.open;
    this.items.forEach((item, index) => { if (item instanceof Answer) this.note(item, this.items[index + 1], open); });
  }

  /** Leaves the end only with somebody who goes up: it also gets farther away by text that came meanwhile. */
  onScroll() {
    const { scrollTop: top, scrollHeight: height, clientHeight } = $("scroll");
    const below = height - top - clientHeight;
    // A page that got shorter goes up by itself; but never by a whole window.
    const isUp = top < this.last.top && (height >= this.last.height || below > clientHeight);
    this.last = { top, height };
    if (isUp && below > AT_END) this.isSticking = false;
    else if (below < NEAR_END) this.isSticking = true;
    if (isUp) $("newest").hidden = this.isSticking;
    else this.stick();
  }

  onSeen(entries) {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      this.seen.unobserve(entry.target);
      const answer = this.answers.find((one) => one.node === entry.target);
      if (answer && !answer.usage) answer.complete();
    }
  }
}
