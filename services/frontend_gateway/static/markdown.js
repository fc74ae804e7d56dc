// Turns a model's Markdown into elements, one by one: no markup of the text ever reaches a parser of HTML.
import { Lexer } from "./vendor/marked.esm.js";
import { copy, el } from "./dom.js";

const MAX_INLINE = 8_000; // characters of one paragraph that are looked at: some inputs cost their square
const MAX_DEPTH = 24; // nested quotes and lists; deeper ones are shown as they were written
const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;
const HEADING_BELOW = 2; // the page has headings of its own above those of an answer
const LOWEST_HEADING = 6;

/** References of characters that models write; any other stays as it was written. */
const NAMED = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™",
  hellip: "…", mdash: "—", ndash: "–", lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", bull: "•",
  middot: "·", deg: "°", plusmn: "±", times: "×", divide: "÷", le: "≤", ge: "≥", ne: "≠", rarr: "→",
  larr: "←", euro: "€", pound: "£", sect: "§", frac12: "½",
};

/** @typedef {{type: string, raw: string, [more: string]: any}} Token */

class BoundedLexer extends Lexer {
  inlineTokens(source, tokens = []) {
    if (source.length <= MAX_INLINE) return super.inlineTokens(source, tokens);
    tokens.push({ type: "text", raw: source, text: source });
    return tokens;
  }
}

/**
 * The blocks of a text, in order; together their `raw` is the text.
 * @param {string} text with line feeds alone
 * @param {Record<string, any>} links link definitions that stood before; the text's own are added
 * @returns {Token[]}
 */
export function blocksOf(text, links) {
  try {
    const lexer = new BoundedLexer({ gfm: true, breaks: true });
    lexer.tokens.links = links;
    return [...lexer.lex(text)];
  } catch { // nested deeper than the stack is
    return [{ type: "plain", raw: text }];
  }
}

/** Whether a block shows anything. @param {Token} token */
export const isShown = (token) => token.type !== "space" && token.type !== "def";

/**
 * Makes the children of `parent` behind `after`, or all, show these blocks; one that shows the
 * same already stays, so that what a reader selected in it stays too.
 * @param {Element} parent @param {Token[]} tokens @param {Element|null} [after] @param {number} [depth]
 */
export function patch(parent, tokens, after = null, depth = 0) {
  // From sibling to sibling: looking a child up by its number counts all before it, after each change anew.
  let old = after ? after.nextElementSibling : parent.firstElementChild;
  for (const token of tokens) {
    if (!isShown(token)) continue;
    const next = old ? old.nextElementSibling : null;
    if (!old) parent.append(nodeOf(token, depth));
    else if (!keeps(old, token, depth)) old.replaceWith(nodeOf(token, depth));
    old = next;
  }
  while (old) {
    const next = old.nextElementSibling;
    old.remove();
    old = next;
  }
}

/** Whether an element shows a block already, or could be made to by changing a part of it. */
function keeps(node, token, depth) {
  const old = node.token;
  if (!old || old.type !== token.type) return false;
  if (old.raw === token.raw) return true;
  if (token.type === "code" && old.lang === token.lang && token.text.startsWith(old.text)) {
    const text = node.querySelector("code").firstChild;
    if (!text) return false;
    text.appendData(token.text.slice(old.text.length));
    node.token = token;
    return true;
  }
  if (token.type === "list" && old.ordered === token.ordered && old.start === token.start && old.loose === token.loose) {
    patch(node, token.items, null, depth + 1);
    node.token = token;
    return true;
  }
  return false;
}

/** The element of a block. @param {Token} token @param {number} depth @returns {HTMLElement} */
function nodeOf(token, depth) {
  const make = depth > MAX_DEPTH ? plain : BLOCKS[token.type] || plain;
  const node = make(token, depth);
  node.token = token;
  return node;
}

/** What is shown as it was written. */
const plain = (token) => el("p", { class: "plain" }, token.raw.replace(/^\n+|\n+$/g, ""));

const BLOCKS = {
  heading: (token) => {
    const level = Math.min(LOWEST_HEADING, token.depth + HEADING_BELOW);
    return el(`h${level}`, {}, ...inline(token.tokens));
  },
  paragraph: (token) => el("p", {}, ...inline(token.tokens)),
  text: (token) => el("div", {}, ...inline(token.tokens || [token])),
  checkbox: (token) => checkbox(token),
  hr: () => el("hr"),
  blockquote: (token, depth) => {
    const node = el("blockquote");
    patch(node, token.tokens, null, depth + 1);
    return node;
  },
  list: (token, depth) => {
    const start = token.ordered && token.start !== 1 ? token.start : null;
    const node = el(token.ordered ? "ol" : "ul", { start, class: token.loose ? "loose" : null });
    patch(node, token.items, null, depth + 1);
    return node;
  },
  list_item: (token, depth) => {
    const node = el("li", { class: token.task ? "task" : null });
    patch(node, token.tokens, null, depth + 1);
    return node;
  },
  code: codeBlock,
  table,
};

function codeBlock(token) {
  const name = (token.lang || "").trim().split(/\s/)[0];
  const code = el("code", {}, token.text);
  const button = el("button", { type: "button", class: "link", onclick: () => copy(button, code.textContent) }, "Copy code");
  // A code block may be wider than the page, so that it has to be reached by keyboard.
  return el("div", { class: "code" }, el("div", { class: "code-head" }, el("span", {}, name), button),
    el("pre", { tabindex: "0", "aria-label": name ? `Code, ${name}` : "Code" , role: "group" }, code));
}

function table(token) {
  const cell = (tag) => (one) => el(tag, { class: one.align ? `to-${one.align}` : null }, ...inline(one.tokens));
  const head = el("tr", {}, ...token.header.map(cell("th")));
  const rows = token.rows.map((row) => el("tr", {}, ...row.map(cell("td"))));
  return el("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
    el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
}

function checkbox(token) {
  return el("input", { type: "checkbox", disabled: true, checked: token.checked, "aria-label": token.checked ? "done" : "to do" });
}

const INLINE = {
  strong: (token) => el("strong", {}, ...inline(token.tokens)),
  em: (token) => el("em", {}, ...inline(token.tokens)),
  del: (token) => el("del", {}, ...inline(token.tokens)),
  codespan: (token) => el("code", {}, token.text),
  br: () => el("br"),
  escape: (token) => token.text,
  html: (token) => (/^<br\s*\/?>$/i.test(token.raw) ? el("br") : token.raw),
  checkbox,
  link,
  image: (token) => link({ ...token, tokens: [{ type: "text", text: `image: ${token.text || "without a name"}` }] }),
};

/** @param {Token[]} tokens @returns {(Node|string)[]} */
function inline(tokens = []) {
  return tokens.map((token) => {
    const make = INLINE[token.type];
    if (make) return make(token);
    if (token.tokens?.length) return el("span", {}, ...inline(token.tokens));
    return decoded(token.text ?? token.raw);
  });
}

/** A link to elsewhere; one that leads to anything but a page or an address stays text. */
function link(token) {
  const content = inline(token.tokens);
  const href = decoded(token.href || "").trim();
  const target = SAFE_LINK.test(href) ? parsed(href) : null;
  if (!target) return el("span", { class: "dead", title: "Not a link that can be opened" }, ...content, ` (${token.href})`);
  const node = el("a", { href: target.href, title: target.href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...content);
  const shown = namedHost(node.textContent.trim());
  // A text that names one host and leads to another says so; letters of other scripts can look alike.
  const isOther = shown !== null && (shown !== target.host || target.host.includes("xn--"));
  return isOther ? el("span", {}, node, ` (${target.host})`) : node;
}

function parsed(href) {
  try {
    return new URL(href);
  } catch {
    return null;
  }
}

/** The host that a link's text names, or null where it reads like words. */
function namedHost(text) {
  if (!/^(?:https?:\/\/)?[^\s/]+\.[^\s/]{2,}(?:\/\S*)?$/i.test(text)) return null;
  return parsed(/^https?:\/\//i.test(text) ? text : `https://${text}`)?.host ?? null;
}

function decoded(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z][a-z0-9]{1,8}));/gi, (all, decimal, hexadecimal, name) => {
    if (name) return Object.hasOwn(NAMED, name) ? NAMED[name] : all;
    const code = decimal ? parseInt(decimal, 10) : parseInt(hexadecimal, 16);
    const isCharacter = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
    return isCharacter ? String.fromCodePoint(code) : "\ufffd";
  });
}
