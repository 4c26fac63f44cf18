// A session: what it is about, its token curve, its steps, its records, and a search in them.

import { Failure, Poll, at, get } from "./api.js";
import { Curve } from "./curve.js";
import { copier, el, plainText, put, told } from "./dom.js";
import { beside, bytes, clock, costs, count, less, money, plural, short } from "./format.js";
import { Hits } from "./hits.js";
import { go, link } from "./route.js";
import { Rows } from "./rows.js";
import { Tabs } from "./tabs.js";

const PAGE = 100;
const POINTS = 400;

export class SessionView {
  /**
   * `stepped(last)` is told when there is a new step, `renewed(figures)` those of the last one known with every look,
   * `gone(message)` when there is no such session.
   */
  constructor(box, name, { stepped, renewed, gone }) {
    Object.assign(this, { box, name, stepped, renewed, gone });
    this.steps = new Map();
    this.first = this.last = null;
    this.points = [];
    this.records = new Map();
    this.recordCount = 0;
    this.chosen = null;
    this.loading = new Set();
    this.curve = new Curve((number) => go(link(name, "steps", number), true));
    this.figures = el("div", { class: "tiles" });
    this.about = el("div", { class: "about" });
    this.stepRows = new Rows({
      label: "Steps, newest first", height: 34, row: (i) => this.stepRow(i), sign: (i) => this.stepSign(i), need: (from, to) => this.needSteps(from, to),
      moved: (i) => this.last !== null && go(link(name, "steps", this.last - i), true),
    });
    this.recordRows = new Rows({ label: "Records, newest first", height: 56, row: (i) => this.recordRow(i), sign: (i) => this.recordSign(i), need: (from, to) => this.needRecords(from, to) });
    this.hits = new Hits(at(name, "search"), name);
    this.field = el("input", {
      type: "search", id: "find-text", placeholder: "Words, a name, an id", autocomplete: "off", spellcheck: "false",
      "aria-label": "Search the records of this session", oninput: () => this.type(),
    });
    this.tabs = new Tabs("session-tab", [
      ["steps", "Steps", () => link(name)],
      ["records", "Records", () => link(name, "records")],
      ["search", "Search", () => link(name, "search")],
    ], ["steps", "records", "search"]);
    put(this.tabs.panels.steps, el("div", { class: "scroll" }, this.stepRows.element));
    put(this.tabs.panels.records, el("div", { class: "scroll" }, this.recordRows.element));
    put(this.tabs.panels.search, el("div", { class: "bar" }, this.field), el("div", { class: "scroll" }, this.hits.told, this.hits.list));
    const title = el("h1", { id: "session-title", tabindex: "-1" }, told(name, "name"));
    put(
      box,
      el("div", { class: "head" }, el("a", { class: "up", href: "#/" }, "All sessions"), el("div", { class: "title" }, title, copier("Copy name", async () => name)), this.about, this.figures),
      this.curve.element, this.tabs.list, ...Object.values(this.tabs.panels),
    );
    this.polls = [new Poll(2000, () => this.news()), new Poll(15_000, () => this.inform())];
  }

  start() {
    for (const poll of this.polls) poll.start();
  }

  close() {
    for (const poll of this.polls) poll.stop();
    for (const part of [this.curve, this.stepRows, this.recordRows]) part.detach();
  }

  show(tab, asked) {
    this.tabs.show(tab);
    if (tab === "search" && asked.get("q") !== null && this.field.value !== asked.get("q")) {
      this.field.value = asked.get("q");
      this.search();
    }
  }

  choose(number) {
    const known = number !== null && this.last !== null && number <= this.last;
    const quietly = known && number === this.chosen; // the reader may have gone on in the list
    this.chosen = known ? number : null;
    this.curve.choose(number);
    this.stepRows.choose(known ? this.last - number : -1, quietly);
  }

  chooseRecord(number) {
    this.recordRows.choose(number ? this.recordCount - number : -1, true);
  }

  // -- what is told of the session

  async inform() {
    try {
      this.info = await get(at(this.name));
    } catch (error) {
      if (error instanceof Failure && error.status === 404) this.gone(error.message);
      throw error;
    }
    const i = this.info;
    const facts = [
      ["agent", i.agent && told(i.agent)],
      ["forked from", i.forked_from && el("a", { href: link(i.forked_from) }, told(i.forked_from))],
      ["records", count(i.records)],
      ["without summary", i.unobserved ? count(i.unobserved) : null],
      ["summaries to be made again", i.to_redo ? count(i.to_redo) : null],
      ["model calls", costs(i.cost)],
      ["memory", i.control ? "none: this session is in the control group" : null],
      ["Observer queue", count(i.queue.open) + (i.queue.failing ? `, ${count(i.queue.failing)} failing` : "")],
      ["Observer spend", i.spend.calls ? `${money(i.spend.cost)} in ${plural(i.spend.calls, "call")}` : "0"],
    ].filter(([, value]) => value);
    put(
      this.about,
      i.task ? el("p", { class: "task" }, told(i.task)) : "",
      el("dl", { class: "facts" }, facts.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v)))),
    );
    this.tabs.count("records", i.records);
    const added = i.records - this.recordCount;
    if (added < 0) this.records.clear();
    this.recordCount = i.records;
    if (added) this.recordRows.set(i.records, Math.max(0, added));
  }

  // -- steps

  /** What is new: the curve at first, then only the steps after the last one known. */
  async news() {
    if (!this.points.length) {
      await this.load();
      return;
    }
    const page = await get(at(this.name, "steps"), { after: Math.max(0, this.last - 1), limit: PAGE });
    const end = page.steps.shift(); // the last one known: its figures are final once its answer has ended
    const changed = end && this.steps.get(end.number)?.tokens !== end.tokens;
    if (end) {
      this.steps.set(end.number, end);
      this.renewed(end);
    }
    if (changed || page.last === null || page.last < this.last || page.first > this.first || page.next !== null) {
      await this.load(); // or emptied meanwhile, or far behind
      return;
    }
    if (!page.steps.length) return;
    for (const s of page.steps) {
      this.steps.set(s.number, s);
      this.points.push({ ...s, steps: 1, least_tokens: s.tokens });
      this.sums.steps += 1;
      this.sums.tokens += s.tokens;
      this.sums.full_tokens += s.full_tokens;
    }
    this.last = page.last;
    if (this.points.length > 2 * POINTS) await this.load();
    else this.grown(page.steps.length);
  }

  async load() {
    const curve = await get(at(this.name, "curve"), { points: POINTS });
    const added = this.last === null || curve.last === null || curve.last < this.last ? 0 : curve.last - this.last;
    if (curve.last === null || (this.last !== null && curve.last < this.last)) this.steps.clear();
    this.points = curve.points;
    this.first = curve.first;
    this.last = curve.last;
    this.sums = { steps: curve.steps, tokens: curve.tokens, full_tokens: curve.full_tokens };
    this.grown(added);
  }

  grown(added) {
    if (added) this.polls[1].now();
    this.curve.set(this.points);
    const most = Math.max(...this.points.map((p) => Math.max(p.full_tokens, p.tokens)), 1);
    this.stepRows.element.style.setProperty("--most", most);
    const steps = this.last === null ? 0 : this.last - this.first + 1;
    this.stepRows.set(steps, added);
    this.tabs.count("steps", steps);
    const end = this.points.at(-1);
    put(
      this.figures,
      end
        ? [
            this.tile(end, "latest step", count),
            this.tile(this.sums, plural(this.sums.steps, "step"), short),
          ]
        : [],
    );
    this.stepped(this.last);
  }

  tile({ tokens, full_tokens }, what, figure) {
    const than = tokens > full_tokens ? " than without memory" : "";
    const words = `${what}: ${figure(tokens)} ${beside(tokens, full_tokens)} ${figure(full_tokens)} tokens`;
    return el("p", {}, el("b", {}, less(tokens, full_tokens) + than), el("span", { class: "dim" }, words));
  }

  stepSign(index) {
    const number = this.last - index;
    return `${number} ${this.steps.get(number)?.created} ${this.steps.get(number)?.tokens}`;
  }

  stepRow(index) {
    const number = this.last - index;
    const s = this.steps.get(number);
    if (!s) return el("a", { href: link(this.name, "steps", number), class: "step" }, el("b", {}, count(number)), el("span", { class: "wait" }, "\u2026"));
    const full = el("span", { class: "full" });
    const sent = el("span", { class: "sent" });
    full.style.setProperty("--tokens", s.full_tokens);
    sent.style.setProperty("--tokens", s.tokens);
    const what = less(s.tokens, s.full_tokens);
    return el(
      "a",
      {
        href: link(this.name, "steps", number), class: "step",
        "aria-label": `Step ${number}: sent ${count(s.tokens)} ${beside(s.tokens, s.full_tokens)} ${count(s.full_tokens)} tokens, ${s.status}`,
      },
      el("b", {}, count(number)), el("span", { class: "bars" }, full, sent),
      el("span", { class: "number" }, count(s.tokens)),
      el("span", { class: "number dim less" }, { unchanged: "as it came", refused: "refused", control: "control" }[s.tokens === s.full_tokens || s.status === "refused" ? s.status : ""] ?? what),
      el("span", { class: "number dim time" }, clock(s.created)),
    );
  }

  needSteps(from, to) {
    return this.need("steps", this.steps, this.last, from, to, this.stepRows);
  }

  /** Fetch what is missing of the rows in sight; rows are numbered from the last one down. */
  async need(kind, known, last, from, to, rows) {
    const [low, high] = [Math.max(1, last - to + 1), last - from];
    for (let block = Math.floor((low - 1) / PAGE); block <= Math.floor((high - 1) / PAGE); block++) {
      const ends = [Math.max(low, block * PAGE + 1), Math.min(high, (block + 1) * PAGE)];
      const key = `${kind} ${block}`;
      if (ends.every((n) => known.has(n)) || this.loading.has(key)) continue;
      this.loading.add(key);
      try {
        const page = await get(at(this.name, kind), { after: block * PAGE, limit: PAGE });
        for (const item of page[kind]) known.set(item.number, item);
        rows.redraw();
      } catch (error) {
        if (!(error instanceof Failure)) throw error;
      } finally {
        setTimeout(() => this.loading.delete(key), 1000); // a hole is not asked for again at once
      }
    }
  }

  // -- records

  recordSign(index) {
    const number = this.recordCount - index;
    return `${number} ${this.records.has(number)} ${this.records.get(number)?.summary}`;
  }

  recordRow(index) {
    const number = this.recordCount - index;
    const r = this.records.get(number);
    if (!r) return el("a", { href: link(this.name, "records", number) }, el("span", { class: "first" }, el("b", {}, `#${count(number)}`)));
    return el(
      "a", { href: link(this.name, "records", r.trace_id), title: plainText(r.tool_name) },
      el(
        "span", { class: "first" },
        el("span", {}, el("b", {}, `#${count(number)} `), told(r.tool_name, "name"), " ", el("span", { class: "dim" }, told(r.input))),
        el("span", { class: "dim" }, bytes(r.output_bytes)),
      ),
      el("span", { class: "second dim" }, told(r.summary ?? "no summary yet")),
    );
  }

  needRecords(from, to) {
    return this.need("records", this.records, this.recordCount, from, to, this.recordRows);
  }

  // -- search

  type() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => {
      history.replaceState(null, "", link(this.name, "search", { q: this.field.value.toWellFormed() }));
      this.search();
    }, 250);
  }

  search() {
    return this.hits.search(this.field.value.trim());
  }
}
