// Exchanges an API key for a session that no script can read.
import { request, told } from "./api.js";

const form = document.getElementById("form");
const field = document.getElementById("key");
const problem = document.getElementById("problem");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  problem.textContent = "";
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    await request("POST", "/ui/login", { body: { key: field.value.trim() } });
    field.value = "";
    location.assign("/ui/");
  } catch (error) {
    problem.textContent = error.code === "unauthenticated"
      ? "This key is not valid, or it was revoked. Check it, or make a new one."
      : told(error);
    field.focus();
  } finally {
    button.disabled = false;
  }
});
