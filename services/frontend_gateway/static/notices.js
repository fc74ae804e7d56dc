// The one line above the composer: what is going on beside the conversation, the most urgent first.
import { $, el } from "./dom.js";

const ORDER = ["problem", "send", "list", "stream", "watch"];
/** @type {Map<string, {text: string, action: HTMLElement|null}>} */
const told = new Map();

/**
 * Says something in the name of a source; an empty text takes it back.
 * @param {"problem"|"send"|"list"|"stream"|"watch"} source
 * @param {string} text
 * @param {{word: string, act: () => void}|null} [action] what can be done about it
 */
export function notice(source, text, action = null) {
  if (text) {
    const act = () => { notice(source, ""); action.act(); };
    const button = action && el("button", { type: "button", class: "link", onclick: act }, action.word);
    told.set(source, { text, action: button });
  } else {
    told.delete(source);
  }
  const first = ORDER.map((name) => told.get(name)).find(Boolean);
  const line = $("notice");
  const isSame = line.textContent === (first ? first.text + (first.action ? ` ${first.action.textContent}` : "") : "");
  if (!isSame) line.replaceChildren(...(first ? [first.text, ...(first.action ? [" ", first.action] : [])] : []));
}

/** Takes everything back, as when another conversation is opened. */
export function clearNotices() {
  for (const source of ORDER) notice(/** @type {any} */ (source), "");
}
