// Builds and finds elements; text is always text, never markup.

/** @param {string} id @returns {HTMLElement} */
export const $ = (id) => document.getElementById(id);

/**
 * An element with attributes, listeners (`onclick` and the like) and children.
 * An attribute that is null, undefined or false is left out; true stands for an empty one.
 * @param {string} tag
 * @param {Record<string, any>} attributes
 * @param {...(Node|string|number|null|undefined)} children
 * @returns {HTMLElement}
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}

/** Text for screen readers alone. @param {string} text */
export const offscreen = (text) => el("span", { class: "offscreen" }, text);

/**
 * Makes a part of the page anew. What had the focus has it afterwards, or what is around the part:
 * never another button, which the next key would press.
 * @param {HTMLElement} node @param {(Node|string)[]} children what takes the focus has a name in `data-act`
 */
export function redraw(node, children) {
  const active = /** @type {HTMLElement} */ (document.activeElement);
  const hadFocus = node.contains(active);
  node.replaceChildren(...children);
  if (!hadFocus) return;
  const same = /** @type {HTMLElement} */ (node.querySelector(`[data-act="${active.dataset.act}"]:not(:disabled)`));
  const target = same ?? node.parentElement;
  if (!same) target.tabIndex = -1;
  target.focus({ preventScroll: true }); // the reader may be elsewhere
}

/** @param {number|null|undefined} value */
export function number(value) {
  return Number(value || 0).toLocaleString("en");
}

/** Milliseconds with three significant digits. @param {number} ms */
export function duration(ms) {
  return ms >= 1000 ? `${Number((ms / 1000).toPrecision(3))} s` : `${Number(ms.toPrecision(3))} ms`;
}

const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

/**
 * How long ago something was, as a person says it. What seems to come from the future is now.
 * @param {Date} at
 * @param {number} nowMs by the server's clock: that of this machine may be wrong
 */
export function ago(at, nowMs) {
  const minutes = Math.max(0, Math.round((nowMs - at.getTime()) / 60_000));
  if (minutes < 1) return "just now";
  if (minutes < 60) return RELATIVE.format(-minutes, "minute");
  if (minutes < 48 * 60) return RELATIVE.format(-Math.round(minutes / 60), "hour");
  return RELATIVE.format(-Math.round(minutes / 1440), "day");
}

/**
 * Puts a text on the clipboard and says so on the button for a moment.
 * @param {HTMLElement} button
 * @param {string} text
 */
export async function copy(button, text) {
  const word = button.dataset.word ??= button.textContent;  // it may be pressed twice
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => { button.textContent = word; }, 1500);
}
