// One message of the user: its text, its versions, and changing it.
import { copy, el, redraw } from "./dom.js";

/** @typedef {{edit: (question: Question, text: string) => void, giveBack: (text: string) => void}} QuestionActs */

export class Question {
  /** @param {any} row @param {QuestionActs} acts */
  constructor(row, acts) {
    this.id = row.id;
    this.turnId = row.turn_id;
    this.seq = row.seq;
    this.text = row.content;
    this.acts = acts;
    this.switch = null;
    this.form = null;
    this.refused = null; // the request that the server refused; the text is not stored anywhere
    this.body = el("div", { class: "text" }, row.content);
    this.meta = el("div", { class: "meta" });
    this.node = el("article", { class: "message user", "aria-label": "You", "data-id": row.id }, this.body, this.meta);
    this.draw();
  }

  /** Whether it was sent and the server has not confirmed it yet. */
  get isUnsent() { return !this.id; }

  update() { /* what was said does not change */ }

  /** What would be lost with this message: another version that is being written; or nothing. */
  get unsaid() {
    const text = this.form?.querySelector("textarea").value.trim() ?? "";
    return text === this.text.trim() ? "" : text;
  }

  /** The server has stored it. */
  confirm({ id, turnId, seq }) {
    Object.assign(this, { id, turnId, seq });
    this.node.dataset.id = id;
    this.draw();
  }

  /** Says what became of sending it. @param {string} text @param {...HTMLElement} acts */
  tell(text, ...acts) {
    this.meta.replaceChildren(el("p", { class: "facts" }, el("span", { class: "state", "data-state": acts.length ? "failed" : "pending" }, text)),
      el("div", { class: "acts shown" }, ...acts));
  }

  draw() {
    const parts = this.switch ? [this.switch] : [];
    if (!this.isUnsent) {
      const edit = el("button", { type: "button", class: "link", "data-act": "edit", onclick: () => this.edit() }, "Edit");
      const button = el("button", { type: "button", class: "link", "data-act": "copy", onclick: () => copy(button, this.text) }, "Copy");
      parts.push(el("div", { class: "acts" }, edit, button));
    }
    redraw(this.meta, parts);
  }

  /**
   * Turns the text into a field; saying it again makes a version beside this one.
   * @param {string} [text] what was written before @returns {boolean} false where somebody writes one already
   */
  edit(text = this.text) {
    if (this.form || this.isUnsent) return false;
    const active = document.activeElement;
    const field = el("textarea", { class: "field", "aria-label": "Your message, said in other words", rows: Math.min(10, text.split("\n").length) });
    field.value = text;
    const close = () => {
      this.form?.replaceWith(this.body);
      this.form = null;
      this.meta.hidden = false;
      this.meta.querySelector('[data-act="edit"]')?.focus();
    };
    const send = (event) => {
      event.preventDefault();
      if (!field.value.trim()) return;
      const said = field.value;
      close();
      if (said !== this.text) this.acts.edit(this, said);
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
      if (event.key !== "Escape") return;
      event.stopPropagation();
      close();
    });
    this.form = el("form", { class: "edit", onsubmit: send }, field,
      el("div", { class: "row" }, el("button", { class: "button main", type: "submit" }, "Send this version"),
        el("button", { class: "button", type: "button", onclick: close }, "Keep the old one")));
    this.body.replaceWith(this.form);
    this.meta.hidden = true;
    if (text !== this.text && active.matches("textarea")) return true; // brought back while something else is written
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
    return true;
  }
}
