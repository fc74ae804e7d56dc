// One answer of a model: its text while it grows, its state, and what can be done with it.
import { follow, request, told } from "./api.js";
import { copy, duration, el, number, offscreen, redraw } from "./dom.js";
import { Prose } from "./prose.js";
import { Speech, say } from "./speech.js";
import { reasonText, stateWord, TERMINAL } from "./words.js";

/**
 * What a page does for its answers.
 * @typedef {{onGrown: () => void, onState: (how: "open"|"waiting") => void, onEnded: (answer: Answer) => void,
 *            onLost: (error: any) => void, again: (answer: Answer) => void, goOn: (answer: Answer) => void,
 *            stop: (answer: Answer) => void}} Acts
 */

export class Answer {
  /** @param {any} row a message as the server lists it @param {Acts} acts @param {AbortSignal} signal */
  constructor(row, acts, signal) {
    this.id = row.id;
    this.turnId = row.turn_id;
    this.seq = row.seq;
    this.status = row.status;
    this.reason = row.reason;
    this.kind = row.kind;
    this.ahead = null; // open turns before it in its conversation
    this.sentAt = null; // when it was asked for here, by this page's clock
    this.firstAt = null; // when its first words came
    this.usage = null;
    this.model = null;
    this.incoming = null; // what the stream told so far; null before it told anything
    this.isStopping = false;
    this.losses = 0; // times that its stream was refused
    this.isFollowed = false;
    this.isContinued = false; // another answer goes on where this one stopped
    this.speech = new Speech();
    this.spoken = 0; // characters of the text that were given to it
    this.isAwaited = !this.isOver; // it was open on this page, or asked for here: its end is said
    this.isAnnounced = false;
    this.acts = acts;
    this.life = new AbortController(); // a page that shows another version does not follow this one
    this.signal = this.life.signal;
    signal.addEventListener("abort", () => this.leave(), { once: true, signal: this.signal });
    this.body = el("div", { class: "prose" });
    this.end = el("div", { class: "end" });
    this.meta = el("div", { class: "meta" });
    this.node = el("article", { class: "message assistant", "aria-label": "Answer", "data-id": row.id }, this.body, this.end, this.meta);
    this.prose = new Prose(this.body, () => acts.onGrown());
    this.switch = null;
    this.told = null; // what the end of the stream said of the text
    this.prose.set(row.content);
    if (this.isOver) this.prose.finish();
    this.draw();
  }

  get isOver() { return TERMINAL.has(this.status); }

  /** It is not shown any more. */
  leave() { this.life.abort(); }

  /** Milliseconds from the question to the first words; null where it was asked elsewhere. */
  get firstMs() { return this.sentAt === null || this.firstAt === null ? null : this.firstAt - this.sentAt; }

  /**
   * Learns when it was asked for; the stream, and even the end, may have been quicker than the server's answer.
   * @param {number} at
   */
  sent(at) {
    this.sentAt ??= at;
    this.isAwaited = true;
    if (this.isOver && !this.isFollowed) this.announce();
    this.draw();
  }

  /** The answer as it is known here, byte by byte. */
  get text() { return this.incoming ?? this.prose.text; }

  /** Takes over what the rows say. @param {any} row */
  update(row) {
    if (this.isFollowed) return; // its stream knows better, and will tell the end
    if (this.isOver && !TERMINAL.has(row.status)) return; // read before it ended
    this.status = row.status;
    this.reason = row.reason;
    if (this.isOver || row.content.length > this.text.length) {
      this.incoming = null;
      this.prose.set(row.content);
    }
    if (this.isOver) {
      this.settle();
      this.announce();
    }
    this.draw();
  }

  /** Shows the stream until the answer has ended. Resolves then, or when the page is left. */
  async follow() {
    if (this.isFollowed || this.isOver) return;
    this.isFollowed = true;
    this.node.setAttribute("aria-busy", "true");
    try {
      await follow(this.turnId, {
        signal: this.signal,
        onState: this.acts.onState,
        onEvent: (event, isFirst) => this.apply(event, isFirst),
      });
    } catch (error) {
      this.losses += 1;
      if (!this.signal.aborted) this.acts.onLost(error);
    } finally {
      this.isFollowed = false;
      this.node.removeAttribute("aria-busy");
    }
    if (this.signal.aborted || !this.isOver) return;
    this.announce();
    this.settle();
    this.draw();
    this.acts.onEnded(this);
  }

  apply({ event, data }, isFirst) {
    if (isFirst) this.incoming = ""; // everything is told again; what is shown already stays
    if (event === "content_delta") {
      this.firstAt ??= performance.now();
      this.incoming = (this.incoming ?? "") + data.text;
      this.speak(data.text);
      this.grow(data.text);
    } else if (event === "snapshot") {
      this.incoming = data.text;
      this.speak(data.text);
      const isNew = this.prose.text.length === 0;
      this.prose.set(data.text);
      if (isNew) this.draw();
    } else if (event === "status") {
      this.status = data.state;
      this.draw();
    } else if (event === "usage") {
      this.usage = data;
    } else if (event === "done") {
      this.finish(data);
    }
  }

  /** Says what is new: after a loss of the connection the text is told again. @param {string} end of what came so far */
  speak(end) {
    const fresh = this.incoming.length - this.spoken;
    if (fresh <= 0) return;
    this.speech.add(end.slice(-fresh));
    this.spoken = this.incoming.length;
  }

  /** Says the rest and how it ended, once; the rows may tell it before the stream does. */
  announce() {
    if (!this.isAwaited || this.isAnnounced) return;
    this.isAnnounced = true;
    this.speech.add(this.text.slice(this.spoken));
    this.speech.end();
    say(this.status === "completed" ? "The answer is complete." : reasonText(this) || stateWord(this));
  }

  grow(text) {
    const isNew = this.prose.text.length === 0 || this.status !== "generating";
    if (this.incoming.length === this.prose.text.length + text.length) this.prose.append(text);
    else if (!this.prose.text.startsWith(this.incoming)) this.prose.set(this.incoming);
    this.status = "generating";
    if (isNew) this.draw(); // not for every piece: a button that is made anew under the mouse is never clicked
  }

  finish(data) {
    this.status = data.status;
    this.reason = data.reason;
    this.told = { length: data.length, sha256: data.sha256 };
    if (this.incoming !== null) this.prose.set(this.incoming);
  }

  settle() {
    this.isStopping = false;
    this.ahead = null;
    this.prose.finish();
  }

  /** Whether what is shown is what the server says it stored. */
  async isAsStored() {
    if (!this.told) return true;
    const bytes = new TextEncoder().encode(this.text);
    if (bytes.length !== this.told.length) return false;
    if (!this.told.sha256 || !crypto.subtle) return true;
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    return [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("") === this.told.sha256;
  }

  /** Reads what the rows know beside the text. */
  async complete() {
    try {
      const turn = await request("GET", `/v1/turns/${this.turnId}`, { signal: this.signal });
      this.usage = turn.usage;
      this.model = turn.model;
      if (TERMINAL.has(turn.status)) Object.assign(this, { status: turn.status, reason: turn.reason });
      this.draw();
    } catch { /* the line stays shorter; the answer is there */ }
  }

  draw() {
    const hasText = this.prose.text.length > 0;
    const state = el("span", { class: "state", "data-state": this.status }, stateWord({ ...this, hasText }));
    const facts = [state, ...this.facts(), el("a", { class: "quiet-link", "data-act": "plan", href: `/ui/turns/${this.turnId}` }, "plan", offscreen(" of this answer"))];
    redraw(this.meta, [...(this.switch ? [this.switch] : []), el("p", { class: "facts" }, ...facts), this.buttons(hasText)]);
    this.drawEnd();
  }

  facts() {
    const parts = [];
    if (this.firstMs !== null) parts.push(el("span", {}, `first token ${duration(this.firstMs)}`));
    if (this.usage) {
      const { input, output, estimated } = this.usage;
      const title = `${number(input)} tokens in, ${number(output)} out, ${estimated ? "estimated here" : "as the provider counted"}`;
      parts.push(el("span", { title }, `${number(input)} + ${number(output)} tokens${estimated ? " (estimated)" : ""}`));
    }
    if (this.model) parts.push(el("span", {}, this.model));
    return parts;
  }

  buttons(hasText) {
    const button = (name, word, act) => el("button", { type: "button", class: "link", "data-act": name, onclick: act }, word);
    // What is not complete asks for something; of the others it is enough to know where to look.
    const isAsking = this.status !== "completed" && !this.isContinued;
    const row = el("div", { class: isAsking ? "acts shown" : "acts" });
    if (!this.isOver) {
      const stop = button("stop", "Stop", () => this.acts.stop(this));
      if (this.isStopping) stop.setAttribute("aria-disabled", "true"); // a disabled one would lose the focus
      row.append(stop);
      return row;
    }
    if (["partial", "cancelled"].includes(this.status) && hasText && !this.isContinued) row.append(button("go-on", "Continue", () => this.acts.goOn(this)));
    if (!this.isContinued) row.append(button("again", "Answer again", () => this.acts.again(this)));
    if (hasText) row.append(button("copy", "Copy", (event) => copy(event.currentTarget, this.text)));
    return row;
  }

  drawEnd() {
    const why = this.isOver ? reasonText(this) : "";
    const torn = this.status === "partial" ? [el("hr", { class: "torn" })] : [];
    this.end.replaceChildren(...torn, ...(why ? [el("p", { class: "why" }, why)] : []));
  }
}

/** Why a stream is of no use any more, for a person. @param {any} error */
export const lostText = (error) => (error.code === "stream-expired" ? "This answer was deleted." : told(error));
