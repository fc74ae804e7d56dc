// Reads an answer to a screen reader by the sentence, so that it is not interrupted at every word.
import { $, el } from "./dom.js";

const MAX_SPOKEN = 20; // sentences that stay in the region; a reader has passed the older ones
const MAX_REST = 2_000; // characters without an end of a sentence; then what there is is said
const END = /[.!?…:](?=\s)|\n/g;

export class Speech {
  constructor() {
    this.rest = "";
    this.isCode = false;
  }

  /** @param {string} text what came new */
  add(text) {
    this.rest += text;
    let begin = 0;
    while (END.exec(this.rest)) {
      this.sentence(this.rest.slice(begin, END.lastIndex));
      begin = END.lastIndex;
    }
    this.rest = this.rest.slice(begin);
    if (this.rest.length <= MAX_REST) return;
    this.sentence(this.rest);
    this.rest = "";
  }

  end() {
    this.sentence(this.rest);
    this.rest = "";
  }

  sentence(text) {
    if (/^\s*(?:```|~~~)/.test(text)) {
      this.isCode = !this.isCode;
      if (this.isCode) say("A code block.");
    } else if (!this.isCode) {
      say(text.replace(/[*_`#>|~]+/g, " ").replace(/\[([^\]]*)\]\([^)]*\)/g, "$1"));
    }
  }
}

/** Says something after what is being said. @param {string} text */
export function say(text) {
  const spoken = text.replace(/\s+/g, " ").trim();
  if (!/[\p{L}\p{N}]/u.test(spoken)) return;
  const region = $("spoken");
  region.append(el("p", {}, spoken));
  while (region.children.length > MAX_SPOKEN) region.firstElementChild.remove();
}
