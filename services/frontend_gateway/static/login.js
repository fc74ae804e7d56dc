// Exchanges an API key for a session that no script can read.
import { request, told } from "./api.js";
import { $ } from "./dom.js";
import { holdUnsent, noteSession } from "./drafts.js";

const form = $("form");
const field = /** @type {HTMLInputElement} */ ($("key"));
const problem = $("problem");

$("ended").hidden = location.search !== "?ended";

/** Where to go afterwards: a page of ours that led here, never another site. */
function destination() {
  const next = new URLSearchParams(location.search).get("next") || "";
  return (/^\/ui\/[A-Za-z0-9/-]*$/.test(next) ? next : "/ui/") + location.hash;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  problem.textContent = "";
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    await request("POST", "/ui/login", { body: { key: field.value.trim() } });
    field.value = "";
    noteSession(true);
    holdUnsent(); // it was written under another key, so nothing of it is sent under this one
    location.assign(destination());
  } catch (error) {
    problem.textContent = error.code === "unauthenticated"
      ? "This key is not valid, or it was revoked. Check it, or make a new one."
      : told(error);
    field.focus();
  } finally {
    button.disabled = false;
  }
});
