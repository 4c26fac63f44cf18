// The tokens of every step as a drawing: the full history against what was sent; and as a table.

import { el, put, svg } from "./dom.js";
import { beside, count, less, short } from "./format.js";

export const HEIGHT = 150;
const EDGE = { left: 44, right: 10, top: 8, bottom: 20 };
const TABLE = 200; // rows of the table at most

export class Curve {
  /** `picked(number)` is told which step was chosen. */
  constructor(picked) {
    this.picked = picked;
    this.points = [];
    this.chosen = null;
    this.hovered = null;
    this.width = 600;
    this.drawing = svg("svg", { height: HEIGHT, "aria-hidden": "true" });
    this.stage = el(
      "div",
      {
        class: "curve", role: "slider", tabindex: "0", "aria-label": "Steps",
        onkeydown: (e) => this.key(e), onclick: (e) => this.pick(e),
        onpointermove: (e) => this.hover(this.number(e)), onpointerleave: () => this.hover(null),
      },
      this.drawing,
    );
    this.legend = el("p", { class: "legend" });
    this.table = el("details", { class: "table" }, el("summary", {}, "The curve as a table"));
    this.table.addEventListener("toggle", () => this.fillTable());
    this.element = el("div", { class: "curve-box" }, this.legend, this.stage, this.table);
    this.watcher = new ResizeObserver(() => {
      const width = this.stage.clientWidth;
      if (width && width !== this.width) {
        this.width = width;
        this.draw();
      }
    });
    this.watcher.observe(this.stage);
  }

  detach() {
    this.watcher.disconnect();
  }

  set(points) {
    this.points = points;
    this.draw();
    this.fillTable();
  }

  choose(number) {
    this.chosen = number;
    this.draw();
  }

  get first() {
    const point = this.points[0];
    return point.number - point.steps + 1;
  }

  get last() {
    return this.points.at(-1).number;
  }

  /** The point that a step is part of. */
  point(number) {
    return this.points.find((p) => p.number >= number) ?? this.points.at(-1);
  }

  x(number) {
    const room = this.width - EDGE.left - EDGE.right;
    return this.last === this.first ? EDGE.left + room / 2 : EDGE.left + (room * (number - this.first)) / (this.last - this.first);
  }

  draw() {
    if (!this.points.length) {
      put(this.drawing);
      put(this.legend, "No step yet.");
      return;
    }
    const most = Math.max(...this.points.map((p) => Math.max(p.full_tokens, p.tokens)), 1);
    this.drawing.setAttribute("width", this.width);
    this.drawing.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    const { parts, y } = axis(most, this.width, short);
    this.y = y;
    for (const [number, anchor] of this.ticks()) {
      parts.push(svg("text", { x: this.x(number), y: HEIGHT - 4, "text-anchor": anchor }, count(number)));
    }
    parts.push(...this.line("full", (p) => p.full_tokens), ...this.line("sent", (p) => p.tokens));
    const number = this.hovered ?? this.chosen;
    if (number !== null) parts.push(...this.cursor(number));
    put(this.drawing, parts);
    this.say(number ?? this.last);
  }

  ticks() {
    const [first, last] = [this.first, this.last];
    if (first === last) return [[first, "middle"]];
    const gap = Math.max(1, nice((last - first) / 5));
    const between = [];
    for (let n = Math.ceil((first + 1) / gap) * gap; n < last; n += gap) {
      if (this.x(n) - this.x(first) > 40 && this.x(last) - this.x(n) > 50) between.push([n, "middle"]);
    }
    return [[first, "start"], ...between, [last, "end"]];
  }

  line(kind, tokens) {
    const places = this.points.map((p) => `${this.x(p.number).toFixed(1)},${this.y(tokens(p)).toFixed(1)}`);
    if (this.points.length === 1) {
      const [cx, cy] = places[0].split(",");
      return [svg("circle", { class: `dot ${kind}`, cx, cy, r: 3.5 })];
    }
    const floor = this.y(0);
    const area = `M${this.x(this.points[0].number)},${floor} L${places.join(" L")} L${this.x(this.last)},${floor} Z`;
    return [svg("path", { class: `area ${kind}`, d: area }), svg("path", { class: `line ${kind}`, d: `M${places.join(" L")}` })];
  }

  cursor(number) {
    const p = this.point(number);
    const x = this.x(number);
    return [
      svg("line", { class: this.hovered === null ? "cursor" : "cursor hover", x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }),
      svg("circle", { class: "dot full", cx: x, cy: this.y(p.full_tokens), r: 3.5 }),
      svg("circle", { class: "dot sent", cx: x, cy: this.y(p.tokens), r: 3.5 }),
    ];
  }

  say(number) {
    const p = this.point(number);
    const among = p.steps > 1 ? ` (the most of steps ${count(p.number - p.steps + 1)} to ${count(p.number)})` : "";
    const what = less(p.tokens, p.full_tokens);
    put(
      this.legend,
      el("b", {}, `Step ${count(number)}`), " ",
      el("span", { class: "key full" }, `full history ${count(p.full_tokens)}`), " ",
      el("span", { class: "key sent" }, `sent ${count(p.tokens)}`), " ",
      el("span", { class: "dim" }, `${what}${among}`),
    );
    this.stage.setAttribute("aria-valuemin", this.first);
    this.stage.setAttribute("aria-valuemax", this.last);
    this.stage.setAttribute("aria-valuenow", number);
    const told = `step ${number}: sent ${count(p.tokens)} ${beside(p.tokens, p.full_tokens)} ${count(p.full_tokens)} tokens${among}`;
    this.stage.setAttribute("aria-valuetext", told);
  }

  number(event) {
    if (!this.points.length) return null;
    const x = event.clientX - this.stage.getBoundingClientRect().left;
    const room = this.width - EDGE.left - EDGE.right;
    const n = this.first + ((x - EDGE.left) / room) * (this.last - this.first);
    return Math.max(this.first, Math.min(this.last, Math.round(n)));
  }

  hover(number) {
    if (number === this.hovered) return;
    this.hovered = number;
    this.draw();
  }

  pick(event) {
    const number = this.number(event);
    if (number !== null) this.picked(number);
  }

  key(event) {
    if (!this.points.length || event.altKey || event.ctrlKey || event.metaKey) return;
    const steps = {
      ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10,
      Home: -Infinity, End: Infinity,
    };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const from = this.chosen ?? this.last;
    this.picked(Math.max(this.first, Math.min(this.last, from + steps[event.key])));
  }

  fillTable() {
    if (!this.table.open) return;
    const every = Math.max(1, Math.ceil(this.points.length / TABLE));
    const rows = this.points.filter((_, i) => i % every === every - 1 || i === this.points.length - 1);
    const head = ["Step", "Full history", "Sent", ""].map((h) => el("th", { scope: "col" }, h));
    const body = rows.map((p) =>
      el(
        "tr", {},
        [count(p.number), count(p.full_tokens), count(p.tokens), less(p.tokens, p.full_tokens)].map((c) => el("td", {}, c)),
      ),
    );
    const caption = el("caption", {}, every > 1 ? `Tokens of every ${every}th point of the curve` : "Tokens by step");
    put(
      this.table,
      el("summary", {}, "The curve as a table"),
      el("div", { class: "scrolls" }, el("table", {}, caption, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body))),
    );
  }
}

/** The lines and labels of a scale up to `most`, the height `y(n)` of a number on it, and its edges. */
export function axis(most, width, label) {
  const gap = nice(most / 3);
  const top = Math.ceil(most / gap) * gap;
  const y = (n) => HEIGHT - EDGE.bottom - ((HEIGHT - EDGE.top - EDGE.bottom) * n) / top;
  const parts = [];
  for (let i = 0; i * gap <= top * 1.001; i++) {
    const at = Math.round(y(i * gap)) + 0.5;
    parts.push(svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: at, y2: at }));
    parts.push(svg("text", { x: EDGE.left - 6, y: at + 4, "text-anchor": "end" }, label(i * gap)));
  }
  return { parts, y, left: EDGE.left, right: EDGE.right };
}

/** The next number of the form 1, 2 or 5 times a power of ten. */
function nice(n) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1e-4, n)));
  return power * [1, 2, 5, 10].find((m) => m * power >= n * 0.9999);
}
