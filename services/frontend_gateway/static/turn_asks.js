// Questions to the plan: what changed, was a text shown, do the stored rows still prove what was sent.
import { request, told } from "./api.js";
import { el, number, offscreen } from "./dom.js";
import { absentWord, leftOutWords, patternWord, trustWord } from "./turn_words.js";

const LISTED = 20; // ids of one kind that are listed; the rest is a number

export class Asks {
  /**
   * @param {{turn: any, step: () => number|null, blocks: import("./turn_blocks.js").Blocks, json: () => string,
   *   openId: (id: string) => void, onError: (error: Error) => boolean, say: (text: string) => void}} parts
   */
  constructor(parts) {
    this.parts = parts;
    this.result = el("div", { class: "result", hidden: true });
    this.field = el("input", { id: "needle", type: "search", placeholder: "A few words of it", autocomplete: "off", maxlength: "8000" });
    const form = el("form", { class: "explain", role: "search" }, el("label", { for: "needle" }, "Was it shown?"), this.field, el("button", { class: "button", type: "submit" }, "Explain"));
    form.addEventListener("submit", (event) => { event.preventDefault(); this.explain(); });
    const button = (word, act) => el("button", { type: "button", class: "button", onclick: act }, word);
    this.copyButton = button("Copy as JSON", () => this.copyJson());
    this.node = el("section", { class: "asks", "aria-label": "Questions to the plan" },
      el("div", { class: "tools" },
        this.compareButton(button), button("Replay", () => this.replay()), this.copyButton, form),
      this.result);
  }

  compareButton(button) {
    const compare = button("Compare with the previous turn", () => this.compare());
    if (!this.parts.turn.parent_turn_id) {
      compare.disabled = true;
      compare.title = "This turn follows no other one.";
    }
    return compare;
  }

  async ask(work) {
    this.show(el("p", { class: "quiet" }, "Asking…"));
    try {
      await work();
    } catch (error) {
      if (this.parts.onError(error)) return;
      this.show(el("p", { class: "why" }, told(error)));
      this.parts.say(told(error));
    }
  }

  compare() {
    return this.ask(async () => {
      const found = await request("GET", `/v1/turns/${this.parts.turn.id}/plan/diff${this.query()}`);
      this.parts.blocks.setMarks(new Map([...found.added.map((id) => [id, "new"]), ...found.twice.map((id) => [id, "twice"]), ...found.swapped.map((id) => [id, "moved"])]));
      this.show(
        verdict(patternWord(found.pattern), found.is_healthy ? "ok" : "warn"), el("p", {}, found.line),
        this.ids("New", found.added.map((id) => ({ id }))), this.ids("No longer shown", found.vanished.map(({ id, reason }) => ({ id, word: leftOutWords(reason).word }))),
        this.ids("Twice", found.twice.map((id) => ({ id }))), this.ids("Of another conversation", found.foreign.map((id) => ({ id }))),
        this.ids("In another order", found.swapped.map((id) => ({ id }))), this.ids("In an older version", found.stale.map((id) => ({ id }))),
        el("p", { class: "quiet" }, "Compared with the turn before: ", el("a", { href: `/ui/turns/${found.against}`, class: "mono" }, found.against.slice(0, 8))));
      this.parts.say(`${patternWord(found.pattern)}. ${found.line}`);
    });
  }

  explain() {
    const text = this.field.value;
    if (!text) { this.field.focus(); return null; }
    return this.ask(async () => {
      const step = this.parts.step();
      const found = await request("POST", `/v1/turns/${this.parts.turn.id}/explain`, { body: { text, ...(step ? { step } : {}) } });
      const line = found.verdict === "present"
        ? `Block ${number(found.block)} of ${number(found.of)} holds it, in ${found.section}: the block begins at token ${number(found.token_offset + 1)} of ${number(found.of_tokens)}, in words of the ${trustWord(found.trust)}.`
        : `The model was not shown it: ${absentWord(found.reason)}.`;
      const id = found.block_id || found.message_id;
      const more = found.also_in.length ? ` ${number(found.also_in.length)} more ${found.also_in.length === 1 ? "block holds" : "blocks hold"} it too.` : "";
      const room = found.verdict === "absent" && found.reason === "budget" && found.budget
        ? el("p", { class: "quiet" }, `The history could use ${number(found.budget.before)} tokens and used ${number(found.budget.used)}.`) : null;
      this.show(verdict(found.verdict === "present" ? "Present" : "Absent", found.verdict === "present" ? "ok" : "warn"), el("p", {}, line + more), room,
        id ? el("p", {}, el("button", { type: "button", class: "link", onclick: () => this.parts.openId(id) }, found.verdict === "present" ? "Show the block" : "Show the message")) : null);
      this.parts.say(line + more);
    });
  }

  replay() {
    return this.ask(async () => {
      const found = await request("GET", `/v1/turns/${this.parts.turn.id}/replay${this.query()}`);
      const line = found.equal ? "Made again from the stored rows, the payload is byte for byte the one that was sent."
        : found.fingerprint_now === null ? "The payload cannot be made again: a text is gone." : "The stored rows give another payload now than the one that was sent.";
      this.show(verdict(found.equal ? "Equal" : "Not equal", found.equal ? "ok" : "warn"), el("p", {}, line),
        el("dl", { class: "facts" }, el("dt", {}, "Sent"), el("dd", { class: "mono" }, found.fingerprint_sent), el("dt", {}, "Now"), el("dd", { class: "mono" }, found.fingerprint_now || "none")),
        this.ids("Changed", found.changed.map(({ id, why }) => ({ id, word: why.replaceAll("_", " ") }))));
      this.parts.say(line);
    });
  }

  async copyJson() {
    const text = this.parts.json();
    const word = this.copyButton.textContent;
    try {
      await navigator.clipboard.writeText(text);
      this.copyButton.textContent = "Copied";
      this.parts.say("Copied");
      setTimeout(() => { this.copyButton.textContent = word; }, 1500);
    } catch {
      // A clipboard needs a secure address; the text can always be copied by hand.
      const area = el("textarea", { class: "json", readonly: true, rows: "12", "aria-label": "The turn as JSON" });
      area.value = text;
      this.show(el("p", {}, "This browser does not allow pages to copy. The text is selected: copy it yourself."), area);
      area.select();
    }
  }

  show(...content) {
    const close = el("button", { type: "button", class: "button icon close", onclick: () => this.hide() }, "✕", offscreen("Close the answer"));
    this.result.replaceChildren(close, ...content.filter((one) => one !== null));
    this.result.hidden = false;
  }

  hide() {
    this.result.hidden = true;
    this.parts.blocks.setMarks(new Map());
  }

  query() {
    const step = this.parts.step();
    return step ? `?step=${step}` : "";
  }

  ids(title, list) {
    if (!list.length) return null;
    const items = list.slice(0, LISTED).map(({ id, word }) => el("li", {},
      el("button", { type: "button", class: "link mono", title: id, onclick: () => this.parts.openId(id) }, nameOf(id, this.parts.blocks)), word ? ` ${word}` : null));
    if (list.length > LISTED) items.push(el("li", { class: "quiet" }, `and ${number(list.length - LISTED)} more`));
    return el("div", { class: "ids" }, el("h3", {}, `${title}: ${number(list.length)}`), el("ul", {}, ...items));
  }
}

/** A message is known by its number; anything else by the beginning of its id. */
function nameOf(id, blocks) {
  const row = blocks.find(id);
  const seq = row?.block?.seq ?? row?.out?.seq;
  const role = row?.block?.role ?? row?.out?.role;
  return seq === null || seq === undefined ? id.slice(0, 8) : `${role === "user" ? "message" : "answer"} ${seq}`;
}

function verdict(word, state) {
  return el("p", { class: `verdict ${state}` }, el("strong", {}, `${state === "ok" ? "✓" : "!"} ${word}`));
}
