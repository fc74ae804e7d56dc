// Shows what the model was shown in one turn, and what was left out and why.
import { request, told } from "./api.js";

const panel = document.getElementById("plan");
let shownFor = null;
let opener = null;

/** Builds an element; text is always text, never markup. */
export function el(tag, attributes = {}, ...children) {
  const svg = ["svg", "rect"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "onclick") node.addEventListener("click", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}

/** The first characters of an id; a click copies all of it. */
export function shortId(id) {
  const button = el("button", { type: "button", class: "link mono", title: `${id}: click to copy` }, String(id).slice(0, 8));
  button.addEventListener("click", () => navigator.clipboard?.writeText(String(id)));
  return button;
}

export function closePlan() {
  panel.hidden = true;
  shownFor = null;
  opener?.focus();
  opener = null;
}

/** Opens the panel for a turn; again for the same turn closes it. */
export async function togglePlan(turnId, button) {
  if (shownFor === turnId) return closePlan();
  shownFor = turnId;
  opener = button;
  panel.hidden = false;
  show(el("p", { class: "quiet" }, "Loading…"));
  panel.querySelector("button").focus();
  try {
    const plan = await request("GET", `/v1/turns/${turnId}/plan`);
    const turn = await request("GET", `/v1/turns/${turnId}`);
    if (shownFor === turnId) show(...plan.steps.flatMap((step) => stepView(step, turn, plan.steps.length)));
  } catch (error) {
    if (shownFor === turnId) show(el("p", { class: "why" }, told(error)));
  }
}

function show(...content) {
  const close = el("button", { type: "button", class: "button icon", onclick: closePlan }, "✕", el("span", { class: "offscreen" }, "Close the plan"));
  panel.replaceChildren(el("div", { class: "head" }, el("h1", {}, "Plan"), close), ...content);
}

function stepView(step, turn, steps) {
  const { plan } = step;
  const blocks = plan.blocks || [];
  const excluded = plan.excluded || [];
  const { budget = {} } = plan;
  const sections = budget.sections || [];
  const parts = steps > 1 ? [el("h2", {}, `Step ${step.step_no}`)] : [];
  parts.push(el("p", {}, sentence(turn, plan)));
  if (sections.length) parts.push(el("h2", {}, "Budget"), budgetBar(budget), budgetTable(sections));
  parts.push(el("h2", {}, "Blocks"), el("ol", { class: "blocks" }, ...blocks.map(blockView)));
  parts.push(el("h2", {}, "Left out"));
  if (plan.excluded_up_to_seq != null) {
    parts.push(el("p", { class: "quiet" }, `Nothing up to seq ${plan.excluded_up_to_seq} is shown to the model.`));
  }
  parts.push(excluded.length
    ? el("ul", { class: "blocks" }, ...excluded.map(excludedView))
    : el("p", { class: "quiet" }, "Nothing was left out."));
  parts.push(el("h2", {}, "Record"), facts(step, plan));
  return parts;
}

function sentence(turn, plan) {
  const shown = plan.count ?? 0;
  const all = shown + (plan.history?.trimmed ?? 0);
  const took = turn.started_at && turn.ended_at ? ` in ${duration(Date.parse(turn.ended_at) - Date.parse(turn.started_at))}` : "";
  const verb = { completed: "Answered", partial: "Answered in part", failed: "Failed", cancelled: "Cancelled" }[turn.status] || "Being answered";
  return `${verb}${took} with ${shown} of ${all} messages, ${number(plan.budget?.used)} of ${number(plan.budget?.tokens)} tokens.`;
}

function budgetBar(budget) {
  const whole = Math.max(budget.tokens || 0, budget.used || 0, 1);
  let x = 0;
  const rects = budget.sections.map((one) => {
    const width = (one.used / whole) * 1000;
    const rect = el("rect", { x, y: 0, width, height: 16, class: `seg-${one.section}` });
    x += width;
    return rect;
  });
  const label = `${number(budget.used)} of ${number(whole)} tokens used`;
  const svg = el("svg", { viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img", "aria-label": label }, ...rects);
  return el("div", { class: "budget" }, svg);
}

function budgetTable(sections) {
  const head = el("tr", {}, el("th", {}, "Section"), el("th", { class: "number" }, "Used, tokens"), el("th", { class: "number" }, "Open before, tokens"));
  const rows = sections.map((one) => el("tr", {}, el("td", {}, one.section), el("td", { class: "number" }, number(one.used)), el("td", { class: "number" }, number(one.before))));
  return el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows));
}

function blockView(block) {
  const sub = [block.source, block.version && `version ${block.version}`, block.seq != null && `seq ${block.seq}`].filter(Boolean).join(" · ");
  return el("li", { class: "block", "data-trust": block.trust },
    el("span", {}, `${block.kind.replaceAll("_", " ")} · ${block.trust}`),
    el("span", { class: "number" }, `${number(block.tokens)} tokens`),
    el("span", { class: "sub" }, sub ? `${sub} · ` : "", shortId(block.id)));
}

function excludedView(one) {
  return el("li", { class: "block out" }, el("span", {}, String(one.reason).replaceAll("_", " ")), shortId(one.id));
}

function facts(step, plan) {
  const rows = [
    ["Model", plan.model], ["Messages", plan.count],
    ["Window", plan.budget?.window && `${number(plan.budget.window)} tokens`],
    ["Kept for the answer", plan.budget?.reply_reserve && `${number(plan.budget.reply_reserve)} tokens`],
    ["Seq", plan.seq_range ? plan.seq_range.join(" to ") : null], ["Revision", plan.assembly_revision],
    ["Tokenizer", plan.tokenizer], ["Fingerprint", plan.fingerprint], ["Stored", new Date(step.created_at).toLocaleString()],
  ];
  const known = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", { class: "facts" }, ...known.flatMap(([name, value]) => [el("dt", {}, name), el("dd", { class: "mono" }, String(value))]));
}

export function number(value) {
  return Number(value || 0).toLocaleString("en");
}

/** Milliseconds with three significant digits. */
export function duration(ms) {
  return ms >= 1000 ? `${Number((ms / 1000).toPrecision(3))} s` : `${Number(ms.toPrecision(3))} ms`;
}
