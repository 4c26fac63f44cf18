// Two sessions side by side: their curves on one scale, what they sent and cost, the tools that they called.

import { Failure, at, get } from "./api.js";
import { HEIGHT, axis } from "./curve.js";
import { el, put, svg, told } from "./dom.js";
import { beside, count, dollars, less, plural, short } from "./format.js";
import { table } from "./home.js";
import { beside as sideBySide, go, link } from "./route.js";

const POINTS = 200;
const RECORDS = 500; // whose tools are counted

export class Compare {
  constructor(names) {
    this.names = names;
    this.body = el("div", {});
    this.element = el("div", { class: "home-page" }, el("a", { class: "up", href: link(names[0]) }, told(names[0], "name")), el("h1", { id: "session-title", tabindex: "-1" }, "Two sessions side by side"), this.body);
    this.watcher = new ResizeObserver(() => this.found && this.body.clientWidth !== this.width && this.draw());
    this.watcher.observe(this.body);
    this.ask();
  }

  stop() {
    this.watcher.disconnect();
  }

  async ask() {
    const known = await get("v1/sessions", { limit: 500 }).catch(() => ({ sessions: [] }));
    this.known = known.sessions;
    try {
      this.found = await Promise.all(this.names.map((name) => this.one(name)));
      this.draw();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      put(this.body, el("p", { class: "note", role: "status" }, error.message));
    }
  }

  async one(name) {
    const [info, curve, { records }] = await Promise.all([get(at(name)), get(at(name, "curve"), { points: POINTS }), get(at(name, "records"), { limit: RECORDS })]);
    const tools = new Map();
    for (const r of records) tools.set(r.tool_name, (tools.get(r.tool_name) ?? 0) + 1);
    return { name, info, curve, tools };
  }

  /** A field to choose the first or the second session. */
  picker(place) {
    const others = this.known.filter((s) => s.name !== this.names[1 - place]);
    const listed = others.some((s) => s.name === this.names[place]) || !this.names[place] ? others : [{ name: this.names[place] }, ...others];
    const options = listed.map((s) => el("option", { value: s.name, selected: s.name === this.names[place] }, s.title ? `${s.title} (${s.name})` : s.name));
    const choose = (e) => go(sideBySide(...[0, 1].map((i) => (i === place ? e.target.value : this.names[i])).filter((name) => name && name !== "/")));
    return el("label", { class: `side-${place}` }, el("span", { class: "key" }, place ? "Second" : "First"), el("select", { onchange: choose }, this.names[place] ? "" : el("option", { value: "/" }, "Choose a session"), options));
  }

  draw() {
    const pickers = el("div", { class: "bar pickers" }, this.picker(0), this.picker(1));
    if (this.found.length < 2) {
      put(this.body, pickers, el("p", { class: "hint" }, "Choose the session to compare with."));
      return;
    }
    const row = (name, of) => el("tr", {}, el("th", { scope: "row" }, name), this.found.map((f) => el("td", {}, of(f) ?? "")));
    const cost = (kind) => (f) => (f.info.cost[kind] === null ? "no price" : dollars(f.info.cost[kind]));
    const rows = [
      row("Task", (f) => el("span", { class: "task" }, told(f.info.task))),
      row("Model", (f) => f.info.cost.models.map((m) => m.model).join(", ")),
      row("Steps", (f) => count(f.curve.steps)),
      row("Tokens sent", (f) => `${short(f.curve.tokens)} ${beside(f.curve.tokens, f.curve.full_tokens)} ${short(f.curve.full_tokens)}: ${less(f.curve.tokens, f.curve.full_tokens)}`),
      row("Paid", cost("sent")),
      row("Without memory", cost("full")),
      row("Summaries by a model", (f) => plural(f.info.queue.calls, "call")),
      row("Records", (f) => count(f.info.records)),
    ];
    const tools = [...new Set(this.found.flatMap((f) => [...f.tools.keys()]))].sort();
    const calls = tools.map((tool) => el("tr", {}, el("th", { scope: "row" }, told(tool, "name")), this.found.map((f) => el("td", {}, count(f.tools.get(tool) ?? 0)))));
    const heads = ["", ...this.found.map((f) => el("a", { href: link(f.name) }, told(f.info.title ?? f.name)))];
    const more = this.found.some((f) => f.info.records > RECORDS) ? el("p", { class: "hint" }, `Calls of the first ${plural(RECORDS, "record")} of each session.`) : "";
    put(this.body, pickers, this.curves(), el("div", { class: "wide sides" }, table(heads, rows)), el("h2", {}, "Calls by tool"), el("div", { class: "wide sides" }, table(heads.map((h) => h && h.cloneNode(true)), calls)), more);
  }

  curves() {
    this.width = this.body.clientWidth;
    const width = Math.max(280, this.width);
    const all = this.found.flatMap((f) => f.curve.points);
    if (!all.length) return el("p", { class: "hint" }, "No step yet.");
    const { parts, y, left, right } = axis(Math.max(...all.map((p) => p.tokens), 1), width, short);
    const last = Math.max(...all.map((p) => p.number), 2);
    const x = (n) => left + ((width - left - right) * (n - 1)) / (last - 1);
    for (const [n, anchor] of [[1, "start"], [last, "end"]]) parts.push(svg("text", { x: x(n), y: HEIGHT - 4, "text-anchor": anchor }, `step ${count(n)}`));
    this.found.forEach((f, i) => parts.push(svg("path", { class: `line side-${i}`, d: `M${f.curve.points.map((p) => `${x(p.number).toFixed(1)},${y(p.tokens).toFixed(1)}`).join(" L")}` })));
    const told = this.found.map((f) => `${f.name}: ${plural(f.curve.steps, "step")}, ${short(f.curve.tokens)} tokens`).join("; ");
    return el("div", { class: "days" }, el("h2", {}, "Tokens sent at each step"), svg("svg", { class: "curve", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": told }, parts));
  }
}
