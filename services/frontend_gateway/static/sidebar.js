// The list of conversations: search, rename, delete, and a while to undo that.
import { backoff, now, pause, request, told } from "./api.js";
import { $, ago, el, offscreen } from "./dom.js";
import { notice } from "./notices.js";

const PAGE = 30;
const SEARCH_AFTER_MS = 200; // of not typing
const MAX_TITLE = 200; // characters; what the server takes
const UNDO_MS = 600_000; // the server's default; where it is shorter it says so when asked
const DELETED = "turnwire.deleted";

export class Sidebar {
  /** @param {{open: (id: string|null) => void, onSignedOut: () => void}} acts */
  constructor(acts) {
    this.acts = acts;
    this.current = null;
    this.oldest = null;
    this.asked = 0;
    this.reading = 0; // lists that are on their way
    this.failures = 0; // since the list was read last
    this.isStale = false; // it was read while somebody wrote a title, and not shown
    this.list = $("conversations");
    let timer = 0;
    $("search").addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.load(), SEARCH_AFTER_MS);
    });
    $("older").addEventListener("click", () => this.load({ older: true }));
    setInterval(() => this.tick(), 30_000);
  }

  get query() { return $("search").value.trim(); }

  /** Reads the list; never fails, it says what is wrong and tries again where that can help. */
  async load({ older = false } = {}) {
    const no = (this.asked += 1);
    const parameters = new URLSearchParams({ limit: String(PAGE) });
    if (this.query) parameters.set("query", this.query);
    if (older && this.oldest) parameters.set("after", this.oldest);
    this.reading += 1;
    try {
      const list = await request("GET", `/v1/conversations?${parameters}`);
      if (no !== this.asked) return; // what was typed meanwhile has been asked for
      this.failures = 0;
      notice("list", "");
      this.isStale = this.list.querySelector(".rename") !== null;
      if (this.isStale) return;
      this.oldest = list.last_id ?? this.oldest;
      $("older").hidden = !list.has_more;
      const items = list.data.map((row) => this.item(row));
      if (older) this.list.append(...items);
      else this.redraw(() => this.list.replaceChildren(...this.deletedItems(), ...items));
      this.entitle();
      $("none").hidden = this.list.children.length > 0;
      $("none").textContent = this.query ? "No title has these words." : "No conversations yet.";
    } catch (error) {
      if (error.status === 401) return this.acts.onSignedOut();
      if (no !== this.asked) return;
      const again = () => { if (no === this.asked) this.load({ older }); };
      notice("list", told(error), { word: "Try again", act: again });
      if (error.retryable) pause(backoff(this.failures++)).then(again);
    } finally {
      this.reading -= 1;
    }
  }

  /** Changes the list; the focus stays on the same button of the same row. @param {() => void} change */
  redraw(change) {
    const active = document.activeElement;
    const row = this.list.contains(active) ? active.closest("li") : null;
    const place = row && [...row.querySelectorAll("a, button")].indexOf(active);
    change();
    if (row) this.rowOf(row.dataset.row)?.querySelectorAll("a, button")[place]?.focus({ preventScroll: true });
  }

  /** @param {string} id */
  rowOf(id) { return this.list.querySelector(`li[data-row="${CSS.escape(id)}"]`); }

  /** @param {string|null} id */
  mark(id) {
    this.current = id;
    this.entitle();
    for (const link of this.list.querySelectorAll("a")) {
      if (link.dataset.id === id) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  /** Names the window after the conversation. */
  entitle() {
    const name = this.current && this.list.querySelector(`a[data-id="${CSS.escape(this.current)}"] .name`)?.textContent;
    document.title = name ? `${short(name)} · Turnwire` : "Turnwire";
  }

  item(row) {
    const at = new Date(row.created_at);
    const name = row.title || "Untitled";
    const time = el("time", { datetime: row.created_at, title: at.toLocaleString() }, ago(at, now()));
    const link = el("a", { href: `#${row.id}`, "data-id": row.id, "aria-current": row.id === this.current ? "page" : null },
      el("span", { class: "name" }, name), time);
    const node = el("li", { "data-row": row.id }, link, el("div", { class: "row-acts" },
      el("button", { type: "button", class: "button icon", title: "Rename", onclick: () => this.rename(node, row) }, el("span", { "aria-hidden": "true" }, "✎"), offscreen(`Rename ${short(name)}`)),
      el("button", { type: "button", class: "button icon", title: "Delete", onclick: () => this.remove(node, row) }, el("span", { "aria-hidden": "true" }, "✕"), offscreen(`Delete ${short(name)}`))));
    return node;
  }

  rename(node, row) {
    const field = el("input", { class: "field", "aria-label": "Title", maxlength: String(MAX_TITLE) });
    field.value = (row.title || "").slice(0, MAX_TITLE);
    let isOver = false;
    const end = (next) => {
      if (isOver) return;
      isOver = true;
      const fresh = this.item(next);
      form.replaceWith(fresh);
      fresh.querySelector("button").focus();
      if (this.isStale) this.load();
    };
    const save = async (event) => {
      event.preventDefault();
      const title = field.value.trim();
      if (!title || title === row.title) return end(row);
      try {
        end(await request("PATCH", `/v1/conversations/${row.id}`, { body: { title } }));
      } catch (error) {
        notice("problem", told(error));
        end(row);
      }
    };
    const form = el("li", {}, el("form", { class: "rename", onsubmit: save }, field));
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      end(row);
    });
    field.addEventListener("blur", () => { if (!isOver) form.firstElementChild.requestSubmit(); });
    node.replaceWith(form);
    field.focus();
    field.select();
  }

  async remove(node, row) {
    try {
      await request("DELETE", `/v1/conversations/${row.id}`);
    } catch (error) {
      if (error.status !== 404) return notice("problem", told(error));
    }
    keepDeleted([...deleted().filter((one) => one.id !== row.id), { id: row.id, title: row.title, created_at: row.created_at, at: now() }]);
    const gone = this.deletedItem(deleted().find((one) => one.id === row.id));
    const shown = node.isConnected ? node : this.rowOf(row.id); // the list may have been read meanwhile
    if (shown) shown.replaceWith(gone);
    else this.list.prepend(gone);
    gone.querySelector("button").focus();
    if (this.reading && !this.query) this.load(); // that list has it still
    if (row.id === this.current) this.acts.open(null);
  }

  deletedItems() {
    return this.query ? [] : deleted().reverse().map((one) => this.deletedItem(one));
  }

  deletedItem(entry) {
    const minutes = Math.max(1, Math.ceil((entry.at + UNDO_MS - now()) / 60_000));
    const undo = el("button", { type: "button", class: "link", onclick: () => this.restore(entry, node) }, "Undo", offscreen(` deleting ${short(entry.title || "Untitled")}`));
    const node = el("li", { class: "deleted", "data-row": entry.id }, el("span", { class: "name" }, `Deleted: ${entry.title || "Untitled"}`),
      el("span", { class: "quiet" }, undo, ` possible for ${minutes} min`));
    return node;
  }

  async restore(entry, node) {
    try {
      const row = await request("POST", `/v1/conversations/${entry.id}/restore`);
      keepDeleted(deleted().filter((one) => one.id !== entry.id));
      (node?.isConnected ? node : this.rowOf(entry.id))?.replaceWith(this.item(row)); // the list may have been read meanwhile
      this.acts.open(entry.id);
    } catch (error) {
      if (error.status === 404 || error.status === 410) {
        keepDeleted(deleted().filter((one) => one.id !== entry.id));
        node?.remove();
      }
      notice("problem", told(error));
    }
  }

  /** Brings back a conversation that was deleted here or elsewhere. @param {string} id */
  async bringBack(id) {
    await this.restore({ id, title: null, created_at: null, at: 0 }, null);
    this.load();
  }

  /** Lets times grow older, and takes away what cannot be undone any more. */
  tick() {
    for (const time of this.list.querySelectorAll("time")) time.textContent = ago(new Date(time.dateTime), now());
    const kept = deleted();
    keepDeleted(kept);
    const shown = this.list.querySelectorAll(".deleted");
    if (shown.length === 0) return;
    this.redraw(() => {
      for (const node of shown) node.remove();
      if (!this.query) this.list.prepend(...this.deletedItems());
    });
  }
}

const short = (title) => (title.length > 80 ? `${title.slice(0, 79)}…` : title);

/** What was deleted here and can still be brought back, by the server's clock. */
function deleted() {
  try {
    const found = JSON.parse(localStorage.getItem(DELETED) ?? "[]");
    return found.filter((one) => Math.abs(now() - one.at) < UNDO_MS);
  } catch {
    return [];
  }
}

function keepDeleted(entries) {
  try {
    localStorage.setItem(DELETED, JSON.stringify(entries));
  } catch { /* then it can be undone until the page is left */ }
}
