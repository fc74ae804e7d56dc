// One opened conversation: reads it, follows what goes on in it, and changes it.
import { backoff, pause, persist, request, told, watch } from "./api.js";
import { lostText } from "./answer.js";
import { switches } from "./branches.js";
import { $, el, offscreen } from "./dom.js";
import { dropUnsent, keepUnsent, newKey, tabId, toDraft } from "./drafts.js";
import { notice } from "./notices.js";
import { Transcript } from "./transcript.js";
import { TERMINAL } from "./words.js";

const PAGE = 50;
const MAX_LOSSES = 3; // refusals of one stream; then the news of the conversation have to do
const RECONNECTING = "Reconnecting… What is shown stays, and the rest follows.";
const SENDING_AGAIN = "Sending again: the server did not confirm it yet. It is stored once at most.";

/**
 * What the page does for a conversation.
 * @typedef {{onCreated: (id: string) => void, onListed: () => void, onSignedOut: () => void, onGone: (error: any) => void,
 *            onDeleted: (id: string) => void, onChanged: () => void, onKept: (entry: import("./drafts.js").Unsent) => void, giveBack: (text: string, how?: {always: boolean}) => boolean}} PageActs
 */

export class Conversation {
  /** @param {string|null} id null for one that does not exist yet @param {PageActs} page */
  constructor(id, page) {
    this.id = id;
    this.page = page;
    this.life = new AbortController();
    this.signal = this.life.signal;
    this.branch = null; // the branch that somebody chose to look at; null is the one that goes on
    this.shown = id; // the branch whose messages are on the page
    this.branches = [];
    this.sending = 0;
    this.line = Promise.resolve(); // what was asked is sent in its order, each when the one before it is decided
    this.decided = 0; // requests that the server took; a list that was read before it did lacks what they made
    this.underway = new Set(); // paths of requests that a second press must not repeat
    this.isUnwanted = false; // stop was pressed before the server had said which turn there is to stop
    this.refreshing = null;
    this.isStale = false;
    this.hasRead = false;
    this.isWatched = false;
    this.readingBefore = null; // the message before which older ones are being read
    this.switched = null; // the switch that was pressed last
    this.asked = null; // the turn that was asked for last, and when
    this.transcript = new Transcript({
      onGrown: () => this.transcript.stick(),
      onState: (how) => notice("stream", how === "waiting" ? RECONNECTING : ""),
      onEnded: (answer) => this.onEnded(answer),
      onLost: (error) => this.onLost(error),
      again: (answer) => this.ask({ method: "POST", path: `/v1/turns/${answer.turnId}/regenerate`, body: {} }),
      goOn: (answer) => this.ask({ method: "POST", path: `/v1/turns/${answer.turnId}/continue`, body: {} }),
      stop: (answer) => this.stop(answer),
      edit: (question, text) => this.ask({
        method: "PATCH", path: `/v1/conversations/${this.id}/messages/${question.id}`, body: { content: text }, text,
      }),
      giveBack: (text) => this.page.giveBack(text, { always: true }),
    }, this.signal);
  }

  /** Leaves it; what was written and is stored nowhere becomes its draft. */
  close() {
    if (this.signal.aborted) return;
    this.life.abort();
    for (const one of this.transcript.items) {
      if (one.refused) toDraft(one.refused);
      if (one.unsaid) toDraft({ key: "", conversation: this.id, text: one.unsaid });
    }
  }

  get isRunning() { return this.transcript.open.length > 0; }

  /** Reads the list, and begins to follow once there is one; calls while one is running are answered by one more. */
  refresh() {
    if (!this.id || this.signal.aborted) return;
    if (this.refreshing || this.sending) {
      this.isStale = true;
      return;
    }
    this.isStale = false;
    this.refreshing = persistRead(() => this.read(), this.signal)
      .then(() => { if (this.hasRead) this.watch(); }, (error) => { if (!this.signal.aborted) this.fail(error); })
      .finally(() => {
        this.refreshing = null;
        if (this.isStale) this.refresh();
      });
  }

  async read() {
    const [wanted, decided] = [this.branch, this.decided];
    const branch = wanted ? `&branch=${wanted}` : "";
    const [list, forks] = await Promise.all([
      request("GET", `/v1/conversations/${this.id}/messages?limit=${PAGE}&order=desc${branch}`, { signal: this.signal }),
      request("GET", `/v1/conversations/${this.id}/branches`, { signal: this.signal }),
    ]);
    if (this.signal.aborted) return;
    if (wanted !== this.branch || decided !== this.decided) {
      this.isStale = true;
      return;
    }
    this.branches = forks.data;
    const shown = wanted ?? forks.data.find((one) => one.is_active)?.id ?? this.id;
    const rows = list.data.reverse();
    const hasOlder = this.transcript.reconcile(rows, { isWhole: !list.has_more, keepsOlder: shown === this.shown });
    this.shown = shown;
    this.hasRead = true;
    if (list.has_more && !hasOlder) this.transcript.offerEarlier(() => this.readEarlier());
    this.meet();
    this.offerVersions();
    this.followFirst();
  }

  async readEarlier() {
    const first = this.transcript.items[0];
    if (!first?.id || first === this.readingBefore) return; // pressed twice
    this.readingBefore = first;
    const branch = this.branch ? `&branch=${this.branch}` : "";
    try {
      const list = await request("GET", `/v1/conversations/${this.id}/messages?limit=${PAGE}&order=desc&after=${first.id}${branch}`, { signal: this.signal });
      if (this.signal.aborted || first !== this.transcript.items[0]) return; // another version is shown
      if (!list.has_more) this.transcript.offerEarlier(null);
      this.transcript.prepend(list.data.reverse());
      this.offerVersions();
    } catch (error) {
      if (!this.signal.aborted) notice("problem", told(error));
    } finally {
      this.readingBefore = null;
    }
  }

  /* Versions */

  offerVersions() {
    const nodes = new Map();
    for (const [seq, { variants, place }] of switches(this.branches, this.shown)) {
      const step = (to, name, sign) => el("button", {
        type: "button", class: "link", "data-act": name, disabled: variants[to] === undefined, onclick: () => this.switchTo(variants[to], seq, name),
      }, el("span", { "aria-hidden": "true" }, sign), offscreen(name === "previous" ? "Previous version" : "Next version"));
      nodes.set(seq, el("div", { class: "switch", role: "group", "aria-label": "Versions" },
        step(place - 1, "previous", "‹"), el("span", { class: "number" }, `${place + 1} / ${variants.length}`), step(place + 1, "next", "›")));
    }
    this.transcript.offerVersions(nodes);
    const node = this.switched && nodes.get(this.switched.seq);
    const button = node?.querySelector(`[data-act="${this.switched.name}"]:not(:disabled)`) ?? node?.querySelector("button:not(:disabled)");
    button?.focus();
    this.switched = null;
  }

  /** Shows another version, with the focus where it was. */
  switchTo(branch, seq, name) {
    this.switched = { seq, name };
    this.branch = this.branches.find((one) => one.id === branch)?.is_active ? null : branch;
    this.refresh();
  }

  /* Following */

  /** Follows the first open answer: those behind it wait for it, and connections are few. */
  followFirst() {
    this.transcript.recount();
    this.page.onChanged();
    const first = this.transcript.open.find((one) => one.losses < MAX_LOSSES);
    if (!first) notice("stream", "");
    else if (!first.isFollowed) first.follow();
  }

  async onEnded(answer) {
    notice("stream", "");
    answer.complete();
    this.followFirst();
    if (!(await answer.isAsStored())) this.refresh();
  }

  onLost(error) {
    notice("stream", "");
    if (error.status === 401) return this.page.onSignedOut();
    notice("problem", lostText(error));
    this.refresh();
  }

  async watch() {
    if (this.isWatched || this.signal.aborted) return;
    this.isWatched = true;
    try {
      await watch(this.id, {
        signal: this.signal,
        onEvent: (event) => this.onNews(event),
        onState: (how) => notice("watch", how === "waiting" ? RECONNECTING : ""),
      });
    } catch (error) {
      this.isWatched = false;
      if (!this.signal.aborted) this.fail(error);
    }
  }

  onNews({ event, data }) {
    if (event === "conversation_deleted") return this.page.onDeleted(this.id);
    const known = data.turn_id && this.transcript.answerOf(data.turn_id);
    if (event === "turn_began" && !known) this.refresh();
    if (event === "turn_ended" && !(known && (known.isOver || known.isFollowed))) this.refresh();
    if (event === "state" && this.differs(data)) this.refresh();
  }

  /** Whether the server's state is another than the page's. */
  differs(data) {
    const isShown = !this.branch && data.branch_id === this.shown;
    if (!this.branch && !isShown) return true;
    if (isShown && data.last_turn_id && !this.transcript.answerOf(data.last_turn_id)) return true;
    const open = new Set(data.open.map((one) => one.turn_id));
    if (data.open.some((one) => one.branch_id === this.shown && !this.transcript.answerOf(one.turn_id))) return true;
    return this.transcript.open.some((one) => !open.has(one.turnId) && !one.isFollowed);
  }

  fail(error) {
    if (error.status === 401) return this.page.onSignedOut();
    if (error.status === 404) return this.page.onGone(error);
    notice("problem", told(error), { word: "Try again", act: () => this.refresh() });
  }

  /* Changing */

  /** Sends a message. @param {string} text */
  send(text) {
    return this.ask({ ...this.messageOf(text), text, waits: this.sending > 0 }, this.transcript.say(text));
  }

  /** The request that says something here, as things stand now. @param {string} text */
  messageOf(text) {
    if (!this.id) return { method: "POST", path: "/v1/conversations", body: { title: titleOf(text), message: { content: text } } };
    const parent = this.branch ? this.branches.find((one) => one.id === this.branch)?.last_turn_id : null;
    return { method: "POST", path: `/v1/conversations/${this.id}/messages`, body: { content: text, ...(parent ? { parent } : {}) } };
  }

  /**
   * Asks for an answer until the server has decided; survives a reload.
   * @param {{method: string, path: string, body: any, text?: string, waits?: boolean}} asked
   * @param {import("./question.js").Question|null} [question] the message on the page that asks
   */
  async ask(asked, question = null) {
    if (!asked.text && this.underway.has(asked.path)) return;
    const entry = { text: "", ...asked, key: newKey(), tab: tabId(), at: Date.now(), conversation: this.id };
    await this.deliver(entry, question);
  }

  /** @param {import("./drafts.js").Unsent} entry @param {import("./question.js").Question|null} question */
  deliver(entry, question) {
    keepUnsent(entry);
    notice("problem", "");
    question?.tell("○ sending");
    if (question) question.refused = null;
    this.sending += 1;
    this.underway.add(entry.path);
    const sentAt = performance.now();
    const decide = () => this.decide(entry, question, sentAt);
    this.line = this.line.then(decide, decide);
    return this.line;
  }

  /** @param {import("./drafts.js").Unsent} kept */
  async decide(kept, question, sentAt) {
    const entry = kept.waits ? { ...kept, ...this.messageOf(kept.text), conversation: this.id, waits: false } : kept;
    if (kept.waits) keepUnsent(entry);
    try {
      const answer = await persist(entry.method, entry.path, { body: entry.body, key: entry.key }, () => {
        notice("send", SENDING_AGAIN);
        question?.tell("○ sending again");
      });
      dropUnsent(entry.key);
      notice("send", "");
      this.accepted(entry.conversation ? answer : answer.turn, question, sentAt);
    } catch (error) {
      dropUnsent(entry.key);
      notice("send", "");
      this.refused(error, entry, question);
    } finally {
      this.sending -= 1;
      if (this.isStale && !this.sending) this.refresh();
      Promise.resolve(this.refreshing).then(() => this.underway.delete(kept.path)); // what was pressed is shown until then
    }
  }

  accepted(turn, question, sentAt) {
    const isNew = this.id === null;
    const isHere = turn.branch_id === (this.shown ?? turn.conversation_id) && question !== null;
    this.id ??= turn.conversation_id;
    this.shown ??= turn.conversation_id;
    this.branch = null; // the server goes on where the newest message was said
    this.decided += 1;
    if (this.signal.aborted) {
      if (isNew) this.page.onListed();
      return;
    }
    if (isNew) {
      for (const one of this.transcript.items) if (one.refused) keepUnsent(one.refused = { ...one.refused, conversation: this.id });
      this.hasRead = true;
      this.page.onCreated(this.id);
      this.watch();
    }
    const isKnown = this.transcript.items.some((one) => one.id === turn.user_message_id);
    if (isHere && !isKnown) {
      question.confirm({ id: turn.user_message_id, turnId: turn.turn_id, seq: turn.seq });
      const row = { id: turn.assistant_message_id, turn_id: turn.turn_id, seq: turn.seq + 1, status: turn.status, reason: null, content: "", kind: turn.kind };
      this.heed(this.transcript.expect(row, sentAt));
      this.isStale ||= TERMINAL.has(turn.status); // asked before, and answered: the rows have the text
      this.followFirst();
    } else {
      if (question) this.transcript.remove(question);
      this.transcript.isSticking = true;
      this.asked = { turnId: turn.turn_id, sentAt };
      this.meet();
      this.isStale = true;
    }
  }

  /** Tells the answer that was asked for here that it was, once it is on the page. */
  meet() {
    const answer = this.asked && this.transcript.answerOf(this.asked.turnId);
    if (!answer) return;
    answer.sent(this.asked.sentAt);
    this.asked = null;
    this.heed(answer);
  }

  /** Stops an answer that was not wanted any more before it was known. @param {import("./answer.js").Answer} answer */
  heed(answer) {
    if (this.isUnwanted) this.stop(answer);
    this.isUnwanted = false;
  }

  refused(error, entry, question) {
    this.isUnwanted = false;
    if (this.signal.aborted) {
      this.page.onKept(entry);
    } else if (error.status === 401) {
      if (entry.text) this.page.giveBack(entry.text, { always: true });
    } else {
      this.isStale ||= ["stale-parent", "turn-in-progress", "not-found"].includes(error.code);
      if (question) return this.offerAgain(error, entry, question);
      // The form has it again; where there is none, the field below.
      const edited = this.transcript.items.find((one) => one.id && entry.path.endsWith(`/messages/${one.id}`));
      if (entry.text && !edited?.edit(entry.text)) this.page.giveBack(entry.text, { always: true });
      notice("problem", told(error));
    }
    if (error.status === 401) this.page.onSignedOut();
  }

  /** A message that was refused stays on the page, and its text in the browser, until something is done with it. */
  offerAgain(error, entry, question) {
    question.refused = { ...entry, isRefused: true };
    keepUnsent(question.refused);
    const send = () => this.deliver({ ...entry, at: Date.now(), waits: true }, question);
    const take = () => {
      if (!this.page.giveBack(entry.text)) return;
      dropUnsent(entry.key);
      this.transcript.remove(question);
    };
    const again = el("button", { type: "button", class: "link", onclick: send }, "Send again");
    const back = el("button", { type: "button", class: "link", onclick: take }, "Take it back");
    question.tell(`✕ not sent: ${told(error)}`, again, back);
    this.transcript.stick();
  }

  /** Ends an answer; one that has ended meanwhile keeps its end. @param {import("./answer.js").Answer} answer */
  async stop(answer) {
    if (answer.isOver || answer.isStopping) return;
    answer.isStopping = true;
    answer.draw();
    try {
      await persist("POST", `/v1/turns/${answer.turnId}/cancel`, { signal: this.signal }, () => {});
    } catch (error) {
      if (this.signal.aborted || error.code === "turn-already-terminal") return;
      answer.isStopping = false;
      answer.draw();
      if (error.status === 401) return this.page.onSignedOut();
      notice("problem", told(error));
    }
  }

  /** Ends the answer that is being written, or the one that is being asked for. */
  stopRunning() {
    const first = this.transcript.open[0];
    if (first) this.stop(first);
    else this.isUnwanted = this.sending > 0;
  }
}

/** Reads again until the server answers; reading needs no key. */
async function persistRead(read, signal) {
  for (let round = 0; ; round += 1) {
    try {
      const found = await read();
      notice("watch", "");
      return found;
    } catch (error) {
      if (signal.aborted || !error.retryable) throw error;
      notice("watch", RECONNECTING);
      await pause(backoff(round), signal);
    }
  }
}

function titleOf(content) {
  const line = content.trim().split("\n")[0];
  const characters = [...line];
  return characters.length > 60 ? `${characters.slice(0, 59).join("")}…` : line;
}
