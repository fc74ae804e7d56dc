// How the model's window was divided: a bar to scale, and a table beneath.
import { el, number } from "./dom.js";

const COLOURS = {
  system: "policy", workspace: "policy", summary: "derived", memory: "derived", retrieved: "data", history: "derived", tools: "data", current: "user",
};

/** @param {any} budget of a plan */
export function budgetView(budget) {
  const section = el("section", { class: "budget", "aria-labelledby": "budget-title" }, el("h2", { id: "budget-title" }, "Budget"));
  const parts = partsOf(budget);
  const whole = Math.max(budget.window || 0, parts.reduce((sum, one) => sum + one.tokens, 0));
  section.append(bar(parts, whole), table(parts), rest(budget));
  return section;
}

function partsOf(budget) {
  const parts = budget.sections.filter((one) => one.used > 0)
    .map((one) => ({ name: one.section, tokens: one.used, open: one.before, kind: COLOURS[one.section] || "data" }));
  const free = Math.max(0, budget.tokens - budget.used);
  const margin = budget.window - budget.reply_reserve - budget.reply_overhead - budget.tokens;
  parts.push({ name: "free", tokens: free, open: null, kind: "free" });
  if (margin > 0) parts.push({ name: "safety margin", tokens: margin, open: null, kind: "margin" });
  parts.push({ name: "kept for the answer", tokens: budget.reply_reserve + budget.reply_overhead, open: null, kind: "reply" });
  return parts;
}

function bar(parts, whole) {
  const label = parts.map((one) => `${one.name} ${number(one.tokens)}`).join(", ");
  const node = el("div", { class: "scale", role: "img", "aria-label": `Of ${number(whole)} tokens: ${label}` });
  for (const one of parts) {
    if (!one.tokens) continue;
    const piece = el("span", { class: `piece ${one.kind}`, title: `${one.name}: ${number(one.tokens)} tokens` });
    piece.style.flexGrow = String(one.tokens);
    node.append(piece);
  }
  return node;
}

function table(parts) {
  const rows = parts.map((one) => el("tr", {},
    el("th", { scope: "row" }, el("span", { class: `swatch ${one.kind}` }), one.name),
    el("td", { class: "number" }, number(one.tokens)),
    el("td", { class: "number" }, one.open === null ? "" : number(one.open))));
  return el("table", {},
    el("caption", { class: "offscreen" }, "Tokens by section"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Section"), el("th", { scope: "col", class: "number" }, "Tokens"),
      el("th", { scope: "col", class: "number" }, "Open to it"))),
    el("tbody", {}, ...rows));
}

function rest(budget) {
  const empty = budget.sections.filter((one) => one.used === 0).map((one) => one.section);
  const words = [`${number(budget.window)} tokens of window`];
  if (budget.safety_factor > 1) words.push(`counted with a factor of ${budget.safety_factor}`);
  if (empty.length) words.push(`nothing from ${empty.join(", ")}`);
  return el("p", { class: "quiet" }, `${words.join("; ")}.`);
}
