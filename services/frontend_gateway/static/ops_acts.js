// The three acts. Each is tried without effect first: what would happen is read before it happens.
import { request, told } from "./api.js";
import { el } from "./dom.js";

const REASONS = [["internal", "failed: internal"], ["deadline", "failed: deadline"], ["user", "cancelled: user"]];

/**
 * Buttons, and the panel that they open.
 * @param {{name: string, path: string, body: Record<string, any>, hasReason?: boolean}[]} acts
 * @param {() => void} onDone
 */
export function actsOf(acts, onDone) {
  const panel = el("div", {});
  const buttons = acts.map((act) => el("button", { class: "button", type: "button", "data-key": act.name, onclick: () => tryOut(act, panel, onDone) }, act.name));
  return el("div", {}, el("div", { class: "acts", role: "group", "aria-label": "What you can do" }, ...buttons), panel);
}

async function tryOut(act, panel, onDone) {
  const reason = act.hasReason ? select() : null;
  const body = () => ({ ...act.body, ...(reason ? { reason: reason.value } : {}) });
  const effect = el("p", { role: "status" }, "Asking what would happen…");
  const go = el("button", { class: "button main", type: "button", disabled: true }, act.name.replace("…", ""));
  const leave = el("button", { class: "button", type: "button", onclick: () => panel.replaceChildren() }, "Leave it as it is");
  panel.replaceChildren(el("div", { class: "act" },
    el("p", {}, "Nothing has happened yet. This is what would:"), effect,
    el("div", { class: "acts" }, reason ? el("label", {}, "Its end says", reason) : null, go, leave)));
  const look = async () => {
    go.disabled = true;
    const answer = await ask(act.path, { ...body(), dry_run: true }, effect);
    go.disabled = answer === null;
    if (answer) go.focus();
  };
  reason?.addEventListener("change", look);
  go.addEventListener("click", async () => {
    go.disabled = true;
    const done = await ask(act.path, { ...body(), dry_run: false }, effect);
    if (!done) return;
    panel.replaceChildren(el("div", { class: "act done" }, el("p", { role: "status" }, `Done. ${done.effect}`)));
    onDone();
  });
  await look();
}

function select() {
  return /** @type {HTMLSelectElement} */ (el("select", { class: "field" }, ...REASONS.map(([value, word]) => el("option", { value }, word))));
}

async function ask(path, body, effect) {
  try {
    const answer = await request("POST", path, { body });
    effect.textContent = answer.effect;
    return answer;
  } catch (error) {
    effect.textContent = told(error);
    return null;
  }
}
