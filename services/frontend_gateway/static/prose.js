// Shows an answer while it grows: what is finished stays untouched, only its last blocks are made again.
import { blocksOf, isShown, patch } from "./markdown.js";

const STEP = 24_000; // characters per frame: a stored answer of a megabyte comes in pieces
const MAX_CODE = 16_000; // of an unfinished code block that are looked at again
const MAX_BLOCK = 48_000; // of any other block
const OPEN_BLOCKS = 2; // a block can still join the one before it: a line of a table, an item of a list
const SHARE = 4; // rendering takes at most a quarter of the time, so that typing stays quick
const MAX_AGAIN = 200_000; // a text up to this size is made again for link definitions that came late

export class Prose {
  /**
   * @param {HTMLElement} node where the answer is shown
   * @param {() => void} [onRendered] called after each change
   */
  constructor(node, onRendered = () => {}) {
    this.node = node;
    this.onRendered = onRendered;
    this.text = ""; // as it was told
    this.source = ""; // the same with line feeds alone
    this.timer = 0;
    this.readyAt = 0;
    this.begin();
  }

  begin() {
    this.isFinished = false;
    this.upto = 0; // characters of the source that are shown
    this.frozen = 0; // of these, in blocks that will not change
    this.lastFrozen = null; // the element of the last of them
    this.opener = ""; // first line of the code block in whose middle the frozen part ends
    this.links = {}; // definitions in blocks that will not change
    this.hasLinks = false; // whether there are any; what stood before them was made without
  }

  /** Replaces all. @param {string} text */
  set(text) {
    if (text === this.text) return;
    if (text.startsWith(this.text)) return void this.append(text.slice(this.text.length), true);
    this.text = text;
    this.source = lines(text);
    this.begin();
    this.render();
  }

  /** Adds to the end. @param {string} text @param {boolean} [atOnce] */
  append(text, atOnce = false) {
    if (!text) return;
    this.isFinished = false;
    this.text += text;
    // A carriage return at the end of one piece may belong to the line feed that begins the next.
    this.source = text.includes("\r") || this.text.at(-text.length - 1) === "\r" ? lines(this.text) : this.source + text;
    if (atOnce) this.render();
    else this.later();
  }

  /** Shows what is still to be shown, soon. */
  later() {
    if (this.timer) return;
    const waitMs = Math.max(0, this.readyAt - performance.now());
    this.timer = setTimeout(() => requestAnimationFrame(() => this.render()), waitMs);
  }

  /** Says that nothing follows. */
  finish() {
    if (this.isFinished) return;
    this.isFinished = true;
    if (this.hasLinks && this.source.length <= MAX_AGAIN) {
      this.node.replaceChildren();
      this.begin();
      this.isFinished = true;
      this.upto = this.source.length;
    }
    this.render();
  }

  render() {
    clearTimeout(this.timer);
    this.timer = 0;
    const began = performance.now();
    this.upto = Math.min(this.source.length, this.upto + STEP);
    this.draw();
    this.onRendered();
    this.readyAt = performance.now() + (performance.now() - began) * (SHARE - 1);
    if (this.upto < this.source.length) this.later();
  }

  /** The first element that can still change. */
  get firstOpen() { return this.lastFrozen ? this.lastFrozen.nextElementSibling : this.node.firstElementChild; }

  draw() {
    const tail = this.opener + this.source.slice(this.frozen, this.upto);
    const links = { ...this.links };
    const tokens = blocksOf(tail, links);
    this.hasLinks ||= Object.keys(links).length > 0;
    patch(this.node, tokens, this.lastFrozen);
    if (this.opener) this.firstOpen?.classList.add("goes-on");
    this.freeze(tokens, tail);
  }

  /** Leaves alone what the next characters cannot change. */
  freeze(tokens, tail) {
    const shown = tokens.filter(isShown);
    const last = shown.at(-1);
    if (!last) return;
    const isLong = last.raw.length > MAX_BLOCK && last.type !== "code";
    let left = isLong ? shown.length : Math.max(0, shown.length - OPEN_BLOCKS);
    let length = 0;
    for (const token of tokens) {
      if (left === 0 || !tail.startsWith(token.raw, length)) break;
      length += token.raw.length;
      if (token.type === "def") this.links[token.tag] ??= { href: token.href, title: token.title };
      if (isShown(token)) {
        left -= 1;
        this.lastFrozen = this.firstOpen;
        forget(this.lastFrozen);
      }
    }
    const start = this.frozen - this.opener.length; // where the tail begins
    if (length > 0) {
      this.frozen = start + length;
      this.opener = "";
    }
    if (last.type === "code" && last.raw.length > MAX_CODE && tokens.at(-1) === last) {
      this.freezeCode(last, start + tail.length - last.raw.length);
    }
  }

  /** Leaves alone the lines of a long code block that is still open; the rest gets a block of its own. */
  freezeCode(token, start) {
    const fence = /^ {0,3}(`{3,}|~{3,})[^\n]*\n/.exec(token.raw);
    const lineEnd = token.raw.lastIndexOf("\n") + 1;
    if (!fence || lineEnd <= fence[0].length) return;
    if (token.raw.trimEnd().endsWith(fence[1])) return; // closed
    const kept = token.raw.slice(0, lineEnd);
    const before = this.node.lastElementChild.previousElementSibling;
    patch(this.node, [{ ...token, raw: kept, text: kept.slice(fence[0].length, -1) }], before);
    this.lastFrozen = this.node.lastElementChild;
    if (this.opener) this.lastFrozen.classList.add("goes-on");
    forget(this.lastFrozen);
    this.frozen = start + lineEnd;
    this.opener = fence[0];
  }
}

/** Drops what a finished block was made from: it is a part of the whole text as it was then, and keeps all of it. */
function forget(node) {
  for (const one of [node, ...node.querySelectorAll("*")]) one.token = null;
}

/** @param {string} text */
const lines = (text) => text.replace(/\r\n?/g, "\n");
