// A session: what it is about, its token curve, its steps, its records, and a search in them.

import { Failure, Poll, at, change, get, save } from "./api.js";
import { Curve } from "./curve.js";
import { copier, el, plainText, put, told } from "./dom.js";
import { WITHOUT, beside, bytes, clock, costs, count, dollars, less, plural, saved, short } from "./format.js";
import { Hits } from "./hits.js";
import { beside as sideBySide, go, link } from "./route.js";
import { Rows } from "./rows.js";
import { Tabs } from "./tabs.js";

const PAGE = 100;
const POINTS = 400;

export class SessionView {
  /**
   * `stepped(last)` is told when there is a new step, `gone(message)` when there is no such session.
   */
  constructor(box, name, { stepped, gone }) {
    Object.assign(this, { box, name, stepped, gone });
    this.steps = new Map();
    this.first = this.last = null;
    this.points = [];
    this.records = new Map();
    this.recordCount = 0;
    this.chosen = null;
    this.loading = new Set();
    this.curve = new Curve((number) => go(link(name, "steps", number), true));
    this.figures = el("div", { class: "tiles" });
    this.only = "";
    this.some = []; // the steps of that kind
    this.kinds = el("div", { class: "bar chips", hidden: true, role: "group", "aria-label": "Which steps are listed" });
    this.about = el("div", { class: "about" });
    this.stepRows = new Rows({
      label: "Steps, newest first", height: 34, row: (i) => this.stepRow(i), sign: (i) => this.stepSign(i), need: (from, to) => this.needSteps(from, to),
      moved: (i) => this.last !== null && go(link(name, "steps", this.at(i)), true),
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
    put(this.tabs.panels.steps, this.kinds, el("div", { class: "scroll" }, this.stepRows.element));
    put(this.tabs.panels.records, el("div", { class: "scroll" }, this.recordRows.element));
    put(this.tabs.panels.search, el("div", { class: "bar" }, this.field), el("div", { class: "scroll" }, this.hits.told, this.hits.list));
    this.title = el("h1", { id: "session-title", tabindex: "-1" }, told(name, "name"));
    this.done = el("p", { class: "failure", role: "status", hidden: true });
    this.handed = el("pre", { class: "handed", hidden: true, tabindex: "0", "aria-label": "What another client needs to go on" });
    this.renaming = el(
      "form", { class: "renaming", hidden: true, onsubmit: (e) => this.rename(e) },
      el("input", { "aria-label": "The name that the lists show", placeholder: "A name for the lists", maxlength: "120", autocomplete: "off" }), el("button", { type: "submit", class: "small" }, "Keep"),
    );
    const act = (label, work, title) => el("button", { type: "button", class: "small", title, onclick: work }, label);
    const actions = el(
      "p", { class: "actions", role: "group", "aria-label": "What to do with this session" },
      copier("Copy name", async () => name), act("Rename", () => this.askName(), "Give it a name for the lists"),
      el("a", { class: "button small", href: sideBySide(name) }, "Compare"),
      copier("Hand on", () => this.handOn()),
      act("Export", () => this.attempt(() => save(at(name, "export"), {}, `${name.replace(/[^\w.-]+/g, "_")}.jsonl`)), "All records, as memory-bank bank import reads them"),
      act("Delete", (e) => this.remove(e.currentTarget), "Delete the session and its records for good"),
    );
    put(
      box,
      el("div", { class: "head" }, el("a", { class: "up", href: "#/" }, "All sessions"), el("div", { class: "title" }, this.title), actions, this.renaming, this.handed, this.done, this.about, this.figures),
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

  choose(number, quietly = false) {
    const known = number !== null && this.last !== null && number <= this.last;
    quietly ||= known && number === this.chosen; // the reader may have gone on in the list
    this.chosen = known ? number : null;
    this.curve.choose(number);
    const index = this.only ? this.some.findIndex((s) => s.number === number) : this.last - number;
    this.stepRows.choose(known ? index : -1, quietly);
  }

  chooseRecord(number) {
    this.recordRows.choose(number ? this.recordCount - number : -1, true);
  }

  // -- what is done with the session

  async attempt(work) {
    try {
      this.done.hidden = true;
      await work();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      put(this.done, error.message);
      this.done.hidden = false;
    }
  }

  /** What another client needs to go on, shown below the buttons and copied. */
  async handOn() {
    let text = "";
    await this.attempt(async () => {
      text = (await get(at(this.name, "handoff"))).text;
      put(this.handed, text);
      this.handed.hidden = false;
    });
    return text;
  }

  askName() {
    this.renaming.hidden = !this.renaming.hidden;
    const field = this.renaming.firstChild;
    field.value = this.info?.title ?? "";
    if (!this.renaming.hidden) field.focus();
  }

  rename(event) {
    event.preventDefault();
    return this.attempt(async () => {
      await change("PUT", at(this.name, "title"), { title: this.renaming.firstChild.value.toWellFormed() });
      this.renaming.hidden = true;
      await this.inform();
    });
  }

  remove(button) {
    if (button.dataset.sure !== "1") {
      button.dataset.sure = "1";
      put(button, "Delete for good?");
      return;
    }
    this.attempt(async () => {
      await change("DELETE", at(this.name));
      go("#/");
    });
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
      ["name", i.title && told(this.name)],
      ["project", i.project && told(i.project)],
      ["forked from", i.forked_from && el("a", { href: link(i.forked_from) }, told(i.forked_from))],
      ["model", i.cost.models.length ? told(i.cost.models.map((m) => m.model).join(", ")) : null],
      ["without summary", i.unobserved ? count(i.unobserved) : null],
      ["summaries to be made again", i.to_redo ? count(i.to_redo) : null],
      ["model calls", costs(i.cost)],
      ["memory", i.control ? "none: this session is in the control group" : null],
      ["summaries waiting for a model", i.queue.open ? count(i.queue.open) + (i.queue.failing ? `, ${count(i.queue.failing)} failing` : "") : null],
      ["summaries by a model", i.queue.calls ? plural(i.queue.calls, "call") : null],
    ].filter(([, value]) => value);
    put(this.title, told(i.title ?? this.name, i.title ? "name titled" : "name"));
    this.tell();
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
    const page = await get(at(this.name, "steps"), { after: this.last, limit: PAGE });
    if (page.last === null || page.last < this.last || page.first > this.first || page.next !== null) {
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
    if (this.only) this.filter(this.only);
    else this.stepRows.set(steps, added);
    this.tabs.count("steps", steps);
    this.offer();
    this.tell();
    this.stepped(this.last);
  }

  /** What the latest step and the whole session saved. */
  tell() {
    const end = this.points.at(-1);
    put(
      this.figures,
      end
        ? [
            this.tile(end, "latest step", count),
            this.tile(this.sums, plural(this.sums.steps, "step"), short),
            this.money(),
          ]
        : [],
    );
  }

  tile({ tokens, full_tokens }, what, figure) {
    const than = tokens > full_tokens ? " than without memory" : "";
    const words = `${what}: ${figure(tokens)} ${beside(tokens, full_tokens)} ${figure(full_tokens)} tokens`;
    return el("p", {}, el("b", {}, less(tokens, full_tokens) + than), el("span", { class: "dim" }, words));
  }

  /** What the session saved in dollars, where the prices are known. */
  money() {
    const cost = this.info?.cost;
    if (!cost || cost.sent === null) return "";
    const { figure, word, paid, would } = saved(0, 0, cost.sent, cost.full);
    return el("p", {}, el("b", {}, `${figure} ${word}`), el("span", { class: "dim" }, `paid ${paid}, without memory ${would}`));
  }

  /** The kinds of steps that can be listed alone, where there are such. */
  async offer() {
    const kinds = Object.entries({ errors: "with errors", without_memory: "without memory" });
    const found = await Promise.all(kinds.map(([only]) => get(at(this.name, "steps"), { only, limit: 500 }).catch(() => ({ steps: [] }))));
    const there = kinds.filter((_, i) => found[i].steps.length);
    this.kinds.hidden = !there.length && !this.only;
    const chosen = async (only) => {
      await this.filter(only);
      if (only && this.some.length) go(link(this.name, "steps", this.some[0].number));
    };
    const chip = (only, told) => el("button", { type: "button", class: "chip", "aria-pressed": String(only === this.only), onclick: () => chosen(only) }, told);
    put(this.kinds, chip("", "all steps"), there.map(([only, told]) => chip(only, `${told} ${count(found[kinds.findIndex(([k]) => k === only)].steps.length)}`)));
  }

  async filter(only) {
    const page = only ? await get(at(this.name, "steps"), { only, limit: 500 }) : { steps: [] };
    if (only !== this.only) this.stepRows.renew();
    this.only = only;
    this.some = page.steps.reverse();
    for (const s of this.some) this.steps.set(s.number, s);
    this.stepRows.set(only ? this.some.length : this.last === null ? 0 : this.last - this.first + 1);
    for (const [i, chip] of [...this.kinds.children].entries()) chip.setAttribute("aria-pressed", String(i === 0 ? !only : chip.textContent.startsWith({ errors: "with e", without_memory: "without" }[only] ?? "\0")));
  }

  /** The number of the step in a row. */
  at = (index) => (this.only ? this.some[index]?.number : this.last - index);

  stepSign(index) {
    const s = this.steps.get(this.at(index));
    return JSON.stringify([this.at(index), s?.created, s?.tokens, s?.status, s?.error]);
  }

  stepRow(index) {
    const number = this.at(index);
    const s = this.steps.get(number);
    if (!s) return el("a", { href: link(this.name, "steps", number), class: "step" }, el("b", {}, count(number)), el("span", { class: "wait" }, "\u2026"));
    const full = el("span", { class: "full" });
    const sent = el("span", { class: "sent" });
    full.style.setProperty("--tokens", s.full_tokens);
    sent.style.setProperty("--tokens", s.tokens);
    const bare = WITHOUT.includes(s.status) ? "no memory" : { unchanged: "as it came", control: "control" }[s.tokens === s.full_tokens ? s.status : ""];
    const what = s.error !== null ? `error${s.http_status >= 400 ? ` ${s.http_status}` : ""}` : (bare ?? less(s.tokens, s.full_tokens));
    return el(
      "a",
      {
        href: link(this.name, "steps", number), class: "step",
        "aria-label": `Step ${number}: sent ${count(s.tokens)} ${beside(s.tokens, s.full_tokens)} ${count(s.full_tokens)} tokens, ${what}`,
      },
      el("b", {}, count(number)), el("span", { class: "bars" }, full, sent),
      el("span", { class: "number" }, count(s.tokens)),
      el("span", { class: `number less ${s.error !== null || WITHOUT.includes(s.status) ? "bad" : "dim"}` }, what),
      el("span", { class: "number dim time" }, clock(s.created)),
    );
  }

  needSteps(from, to) {
    return this.need("steps", this.steps, this.last, from, to, this.stepRows);
  }

  /** Fetch what is missing of the rows in sight; rows are numbered from the last one down. */
  async need(kind, known, last, from, to, rows) {
    if (kind === "steps" && this.only) return; // they are all here
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
