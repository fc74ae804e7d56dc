// Reads an event stream: bytes in any packets, whole events out (WHATWG HTML section 9.2.6).
export class Parser {
  constructor() {
    this.decoder = new TextDecoder();
    this.rest = "";
    this.id = "";
    this.event = "";
    this.data = [];
  }

  /** The events that are complete after these bytes. */
  feed(bytes) {
    this.rest += this.decoder.decode(bytes, { stream: true });
    const events = [];
    for (let line = this.line(); line !== null; line = this.line()) {
      const event = this.take(line);
      if (event) events.push(event);
    }
    return events;
  }

  line() {
    const end = /\r\n|\r|\n/.exec(this.rest);
    if (!end) return null;
    const after = end.index + end[0].length;
    // The line feed that belongs to this carriage return may be in the next packet.
    if (end[0] === "\r" && after === this.rest.length) return null;
    const line = this.rest.slice(0, end.index);
    this.rest = this.rest.slice(after);
    return line;
  }

  take(line) {
    if (line === "") return this.dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return null; // a comment keeps the connection alive
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.data.push(value);
    else if (name === "event") this.event = value;
    else if (name === "id") this.id = value;
    return null;
  }

  dispatch() {
    const { event, data } = this;
    this.event = "";
    this.data = [];
    if (data.length === 0) return null;
    return { id: this.id, event: event || "message", data: JSON.parse(data.join("\n")) };
  }
}
