// A text of any length by its lines: some at a time, found and gone to. What is long is left where it is stored.

import { at, get } from "./api.js";
import { el, marked, put, visible } from "./dom.js";
import { count, plural } from "./format.js";

const AT_ONCE = 300; // lines that are elements
const LONG = 4000; // characters of a line before "show all"
const AROUND = 3;
const MOST_HITS = 200;

/** The lines of a text that is here. */
export class HereLines {
  constructor(text) {
    this.lines = text.split("\n");
    this.count = this.lines.length;
  }

  async slice(from, to) {
    return this.lines.slice(from, to).map((text, i) => ({ number: from + i + 1, text: text.replace(/\r$/, "") }));
  }

  async find(wanted) {
    const needle = wanted.toLowerCase();
    const found = [];
    this.lines.forEach((line, i) => line.toLowerCase().includes(needle) && found.push(i));
    return found;
  }
}

/** The lines of an output that is too long to be fetched whole: the service gives parts of it. */
export class StoredLines {
  constructor(name, id) {
    this.path = at(name, "records", id);
    this.count = null;
  }

  async slice(from, to) {
    const part = await get(this.path, { lines: `${from + 1}-${Math.max(from + 1, to)}`, max_chars: 400_000 });
    this.count = part.count;
    return part.lines;
  }

  async find(wanted) {
    const pattern = `(?i)${wanted.replace(/[.*+?^${}()|[\]\\#\s-]/g, "\\$&")}`;
    const part = await get(this.path, { pattern: pattern.slice(0, 1000), max_chars: 400_000 });
    return part.lines.filter((l) => l.matches).map((l) => l.number - 1);
  }
}

/** Lines with their numbers, a field to find something in them, and the lines around what is found alone. */
export class LinesView {
  constructor(lines, forms = []) {
    this.lines = lines;
    this.start = 0;
    this.wanted = "";
    this.hits = [];
    this.hit = -1;
    this.only = false;
    this.turned = 0;
    const named = { placeholder: "Find in the answer", "aria-label": "Find in the answer", autocomplete: "off", spellcheck: "false" };
    this.field = el("input", { type: "search", ...named, oninput: () => this.type(), onkeydown: (e) => e.key === "Enter" && this.turn(e.shiftKey ? -1 : 1) });
    this.told = el("span", { class: "dim", role: "status" });
    this.previous = el("button", { type: "button", "aria-label": "The place before", onclick: () => this.turn(-1) }, "\u2191");
    this.next = el("button", { type: "button", "aria-label": "The next place", onclick: () => this.turn(1) }, "\u2193");
    this.around = el("button", { type: "button", "aria-pressed": "false", onclick: () => this.toggle() }, "Only lines around");
    this.box = el("div", { class: "lines" });
    this.element = el("div", { class: "answer" }, el("div", { class: "bar" }, this.field, this.previous, this.next, this.told, this.around, ...forms), this.box);
  }

  /** Other lines of the same answer. */
  async take(lines) {
    this.lines = lines;
    this.start = 0;
    await this.find(this.wanted);
  }

  toggle() {
    this.only = !this.only;
    this.around.setAttribute("aria-pressed", String(this.only));
    this.draw();
  }

  type() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.find(this.field.value), 250);
  }

  async find(wanted) {
    const turn = ++this.turned;
    this.wanted = wanted;
    if (this.field.value !== wanted) this.field.value = wanted;
    let hits = [];
    try {
      hits = wanted ? await this.lines.find(wanted) : [];
    } catch (error) {
      this.told.textContent = error.message;
      return;
    }
    if (turn !== this.turned) return;
    this.hits = hits;
    this.hit = hits.length ? 0 : -1;
    await this.reach();
  }

  turn(by) {
    if (!this.hits.length) return;
    this.hit = (this.hit + by + this.hits.length) % this.hits.length;
    this.reach();
  }

  /** Bring the present place among the lines that are shown. */
  async reach() {
    const line = this.hits[this.hit];
    if (line !== undefined && (line < this.start || line >= this.start + AT_ONCE)) this.start = Math.max(0, line - AROUND);
    await this.draw();
    const here = this.box.querySelector(".line.here");
    const [at, panel] = [here?.getBoundingClientRect(), this.element.closest(".panel")?.getBoundingClientRect()];
    if (at && (at.top < panel.top + 60 || at.bottom > Math.min(panel.bottom, innerHeight))) here.scrollIntoView({ block: "center" });
  }

  async draw() {
    const turn = this.turned;
    const around = this.only && this.hits.length > 0;
    let rows;
    try {
      rows = around ? await this.linesAround() : await this.linesFrom(this.start);
    } catch (error) {
      put(this.box, el("p", { class: "hint" }, error.message));
      return;
    }
    if (turn !== this.turned) return;
    put(this.box, rows);
    const none = this.wanted && !this.hits.length;
    this.told.textContent = this.wanted ? (none ? "not found" : `line ${count(this.hit + 1)} of ${count(this.hits.length)}`) : plural(this.lines.count, "line");
    for (const button of [this.previous, this.next, this.around]) button.disabled = !this.hits.length;
  }

  async linesFrom(start) {
    const lines = await this.lines.slice(start, start + AT_ONCE);
    const end = lines.length ? lines.at(-1).number : start;
    return [
      start > 0 ? this.further(`Lines before ${count(start + 1)}`, Math.max(0, start - AT_ONCE)) : "",
      ...lines.map((line) => this.line(line)),
      end < this.lines.count ? this.further(`Lines after ${count(end)} (of ${count(this.lines.count)})`, end) : "",
    ];
  }

  async linesAround() {
    const rows = [];
    let last = -1;
    for (const hit of this.hits.slice(0, MOST_HITS)) {
      if (hit <= last - AROUND) continue;
      const from = Math.max(last + 1, hit - AROUND);
      if (last >= 0 && from > last + 1) rows.push(el("div", { class: "line gap" }, el("span", { class: "no" }, "\u22ef")));
      last = Math.min(this.lines.count - 1, hit + AROUND);
      for (const line of await this.lines.slice(from, last + 1)) rows.push(this.line(line));
    }
    if (this.hits.length > MOST_HITS) rows.push(el("p", { class: "hint" }, `and ${count(this.hits.length - MOST_HITS)} more`));
    return rows;
  }

  further(title, start) {
    const button = el("button", { type: "button", class: "small" }, title);
    button.addEventListener("click", async () => {
      this.start = start;
      await this.draw();
      this.box.querySelector(".line")?.scrollIntoView({ block: "nearest" });
    });
    return button;
  }

  line({ number, text }) {
    const beginning = text.slice(0, LONG);
    const body = el("span", { class: "text" }, this.wanted ? marked(beginning, this.wanted) : visible(beginning));
    if (text.length > LONG) {
      const more = el("button", { type: "button", class: "small" }, `Show all ${plural(text.length, "character")} of this line`);
      more.addEventListener("click", () => put(body, visible(text)));
      body.append(" ", more);
    }
    const here = this.hits[this.hit] === number - 1;
    return el("div", { class: `line ${here ? "here" : ""}` }, el("span", { class: "no", "aria-hidden": "true" }, count(number)), body);
  }
}

/** JSON on lines of its own; null for what is none, has lines already, or is very long. */
export function laidOut(text) {
  const start = text.trimStart()[0];
  if (text.length > 4_000_000 || text.trim().includes("\n") || (start !== "{" && start !== "[")) return null;
  try {
    JSON.parse(text); // only to know that it is JSON: numbers are shown as they were written
  } catch {
    return null;
  }
  const laid = [];
  let depth = 0;
  let before = "";
  const indent = () => laid.push("\n", "  ".repeat(Math.min(40, depth)));
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[^\s"{}[\],:]+|[{}[\],:]/g)) {
    const opens = token === "{" || token === "[";
    const closes = token === "}" || token === "]";
    if (closes) {
      depth--;
      if (before !== "{" && before !== "[") indent();
    } else if (before === "{" || before === "[" || before === ",") indent();
    laid.push(token === ":" ? ": " : token);
    if (opens) depth++;
    before = token;
  }
  return laid.join("");
}
