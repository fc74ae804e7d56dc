// The field at the bottom: writing, sending, stopping; what is not sent yet is kept.
import { $ } from "./dom.js";
import { draftOf, keepDraft } from "./drafts.js";

const KEEP_AFTER_MS = 250; // of not typing; leaving the page keeps it at once

export class Composer {
  /** @param {{send: (text: string) => void, stop: () => void, editLast: () => void, isRunning: () => boolean}} acts */
  constructor(acts) {
    this.acts = acts;
    this.field = /** @type {HTMLTextAreaElement} */ ($("composer-text"));
    this.conversation = null;
    this.timer = 0;
    this.isChanged = false; // since it was kept; another tab may hold a draft for the same conversation
    $("composer").addEventListener("submit", (event) => { event.preventDefault(); this.submit(); });
    $("stop").addEventListener("click", (event) => {
      if (event.detail < 2) this.acts.stop(); // the second of two presses meant the button that stood here before
      this.field.focus();
    });
    this.field.addEventListener("keydown", (event) => this.onKey(event));
    this.field.addEventListener("input", () => this.onInput());
    window.addEventListener("pagehide", () => this.keep());
    document.addEventListener("visibilitychange", () => { if (document.hidden) this.keep(); });
  }

  /** Shows what was written for a conversation. @param {string|null} conversation */
  open(conversation) {
    this.keep();
    this.conversation = conversation;
    this.field.value = draftOf(conversation);
    this.draw();
  }

  /** Shows a draft that was kept beside this page, unless somebody writes. */
  reopen() { if (!this.isChanged) this.open(this.conversation); }

  /** What is written goes on in a conversation that exists now. @param {string} conversation */
  moveTo(conversation) {
    keepDraft(this.conversation, "");
    this.conversation = conversation;
    this.isChanged = true;
    this.keep();
  }

  /** Puts a text back that could not be sent; false where another one is being written, unless it must be kept. */
  giveBack(text, { always = false } = {}) {
    const written = this.field.value.trim();
    if (written && !always) return false;
    this.field.value = written ? `${this.field.value}\n\n${text}` : text;
    this.isChanged = true;
    this.keep();
    this.draw();
    this.field.focus();
    return true;
  }

  draw() {
    const canStop = this.acts.isRunning() && !this.field.value.trim();
    $("stop").hidden = !canStop;
    $("send").hidden = canStop;
    this.grow();
  }

  submit() {
    const text = this.field.value;
    if (!text.trim()) return;
    this.field.value = "";
    this.isChanged = true;
    this.keep();
    this.draw();
    this.field.focus({ preventScroll: true }); // the button that was pressed may be gone
    this.acts.send(text);
  }

  onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.submit();
    } else if (event.key === "ArrowUp" && !this.field.value) {
      event.preventDefault();
      this.acts.editLast();
    }
  }

  onInput() {
    this.isChanged = true;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.keep(), KEEP_AFTER_MS);
    this.draw();
  }

  keep() {
    clearTimeout(this.timer);
    if (this.isChanged) keepDraft(this.conversation, this.field.value);
    this.isChanged = false;
  }

  /** Grows with its lines where the browser does not do it by itself. */
  grow() {
    if (CSS.supports("field-sizing", "content")) return;
    this.field.rows = Math.min(10, this.field.value.split("\n").length);
  }
}
