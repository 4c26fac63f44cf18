// A step: its fold, what became of every past call and why, what changed since the step before.

import { Failure, at, get } from "./api.js";
import { el, plainText, put, told, visible } from "./dom.js";
import { FATES, count, dollars, fateClass, fateSign, less, milliseconds, moment, ofMcp, plural, took, without } from "./format.js";
import { laidOut } from "./lines.js";
import { explanation, memoryText, move, rove, textLines } from "./memory.js";
import { go, link } from "./route.js";
import { Rows } from "./rows.js";
import { Tabs } from "./tabs.js";

const SHOWN = 1600; // characters of an answer before "show all"
const CACHED = 30;
const cache = new Map();

/** A step; kept unless it is the `last`, whose figures are final only once its answer has ended. */
async function fetched(name, number, last, signal) {
  const key = `${number} ${name}`;
  const known = cache.get(key);
  if (known) return known;
  const step = await get(at(name, "steps", number), {}, signal);
  if (number < last) cache.set(key, step);
  if (cache.size > CACHED) cache.delete(cache.keys().next().value);
  return step;
}

/** What was kept of a session's steps here is another one's once it was emptied. */
export const forgetSteps = () => cache.clear();

export class StepView {
  constructor(box, name, last) {
    Object.assign(this, { box, name, last });
    this.number = null;
    this.tabs = new Tabs("step-tab", [
      ["context", "Shown", () => link(name, "steps", this.number)],
      ["answer", "Answer", () => link(name, "steps", this.number, "answer")],
      ["past", "Past calls", () => link(name, "steps", this.number, "past")],
      ["changes", "Changes", () => link(name, "steps", this.number, "changes")],
      ["near", "Near misses", () => link(name, "steps", this.number, "near")],
    ], ["past"]);
    this.tabs.panels.context.addEventListener("keydown", (e) => move(e, this.tabs.panels.context));
    this.title = el("h2", { id: "detail-title", tabindex: "-1" });
    const turn = (by) => () => go(this.address(this.number + by), true);
    this.before = el("button", { type: "button", "aria-label": "The step before", onclick: turn(-1) }, "\u2190");
    this.after = el("button", { type: "button", "aria-label": "The next step", onclick: turn(1) }, "\u2192");
    this.latest = el("a", { class: "button", href: link(name) }, "Latest");
    this.follows = el("span", { class: "chip", hidden: true }, "follows the latest");
    this.figures = el("div", { class: "figures" });
    this.error = el("p", { class: "failure", role: "status", hidden: true });
    this.fates = el("div", { class: "fates" });
    this.billed = el("p", { class: "figures dim billed" });
    this.note = el("p", { class: "note", role: "status" });
    this.filter = "";
    this.decisions = [];
    this.pastRows = new Rows({ label: "Past calls, newest first", height: 56, row: (i) => this.decision(this.decisions[i]), sign: (i) => String(i) });
    this.reason = el("p", { class: "told", role: "status" });
    for (const kind of ["focusin", "click"]) {
      this.pastRows.element.addEventListener(kind, (e) => this.tell(this.decisions[e.target.closest("li")?.dataset.index]));
    }
    put(
      box,
      el(
        "div", { class: "head" },
        el("a", { class: "up", href: link(name) }, told(name, "name")),
        el("div", { class: "title" }, this.title, el("span", { class: "turn" }, this.follows, this.before, this.after, this.latest)),
        this.figures, this.billed, this.fates,
      ),
      this.error, this.note, this.tabs.list, ...Object.values(this.tabs.panels),
    );
  }

  close() {
    this.asking?.abort();
    this.pastRows.detach();
  }

  address(number) {
    return link(this.name, "steps", number, ...(this.tabs.shown === "context" ? [] : [this.tabs.shown]));
  }

  /** How far the session has come. */
  grown(last) {
    this.last = last;
    this.turnable();
  }

  turnable() {
    this.before.disabled = this.number === null || this.number <= 1;
    this.after.disabled = this.number === null || this.last === null || this.number >= this.last;
    this.latest.hidden = this.last === null || this.number === this.last;
  }

  async show(number, view, asked = new URLSearchParams(), follows = false) {
    this.follows.hidden = !follows;
    const panels = Object.keys(this.tabs.panels);
    this.tabs.show(panels.includes(view) ? view : "context");
    const filter = FATES.includes(asked.get("fate")) ? asked.get("fate") : "";
    const filtered = filter !== this.filter;
    this.filter = filter;
    if (number === this.number && (this.step || this.busy)) {
      if (filtered) this.past();
      return;
    }
    this.number = number;
    this.step = null;
    this.busy = true;
    put(this.title, `Step ${count(number)}`);
    this.turnable();
    this.asking?.abort();
    this.asking = new AbortController();
    this.box.setAttribute("aria-busy", "true");
    try {
      const step = await fetched(this.name, number, this.last, this.asking.signal);
      if (number !== this.number) return;
      this.step = step;
      this.draw();
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Failure)) throw error;
      put(this.figures);
      put(this.billed);
      this.error.hidden = true;
      put(this.fates);
      put(this.note, error.message);
      for (const panel of Object.values(this.tabs.panels)) put(panel);
    } finally {
      if (number === this.number) {
        this.busy = false;
        this.box.removeAttribute("aria-busy");
      }
    }
  }

  /** The figures above the tabs: a table of what was sent and of the full history, and a line of the rest. */
  head() {
    const s = this.step.step;
    const row = (name, sent, full, kind = count) => el("tr", {}, el("th", { scope: "row" }, name), [kind(sent), kind(full), sent === full ? "the same" : less(sent, full)].map((c) => el("td", {}, c)));
    const known = s.sent && s.untold === null;
    const rows = [
      row("Tokens", s.tokens, s.full_tokens),
      ...(known ? [row("Read by the provider", s.sent.input, s.full.input), row("of it from its cache", s.sent.cached, s.full.cached), row("Written in the answer", s.sent.output, s.full.output)] : []),
      ...(s.sent_cost === null ? [] : [row(s.billed === null ? "Paid" : "Paid, by its own bill", s.sent_cost, s.full_cost, dollars)]),
    ];
    const heads = ["", "sent", "without memory", ""].map((h) => el("th", { scope: "col" }, h));
    put(this.figures, el("table", { class: "sums" }, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows)));
    const facts = [
      s.model ? el("b", {}, told(s.model)) : "", s.seconds === null ? "" : `answered in ${took(s.seconds)}`, el("time", { datetime: new Date(1000 * s.created).toISOString() }, moment(s.created)),
      s.fold ? `fold ${count(s.fold)}` : "", s.messages ? plural(s.messages, "message") : "", s.records ? plural(s.records, "record") : "", s.milliseconds ? `memory took ${milliseconds(s.milliseconds)}` : "",
    ].filter(Boolean);
    put(this.billed, facts.flatMap((fact, i) => (i ? [" \u00b7 ", fact] : [fact])), this.notes(s));
    const bare = without(s);
    put(this.error, s.error === null ? "" : [el("b", {}, s.http_status >= 400 ? `The provider answered ${s.http_status}: ` : "The provider failed: "), told(s.error)], s.error !== null && bare ? el("br") : "", bare ? [el("b", {}, "Without memory: "), `${bare}. The request went on as it came.`] : "");
    this.error.hidden = !this.error.textContent;
  }

  draw() {
    const { fold, calls, fates, changes, answer } = this.step;
    this.head();
    this.strip(fates);
    put(this.note, this.why());
    this.note.hidden = !this.note.textContent;
    this.numbers = new Map((calls ?? []).map((c) => [c.trace_id, c]));
    this.tabs.count("context", fold?.pieces.length);
    this.tabs.count("past", Object.values(fates ?? {}).reduce((n, of) => n + of, 0));
    this.tabs.count("changes", [this.step.new, this.step.gone, changes].reduce((n, list) => n + (list?.length ?? 0), 0));
    this.tabs.count("near", fold?.near_misses.length);
    this.said(answer);
    put(this.tabs.panels.context, fold ? this.folded(fold, calls ?? []) : el("p", { class: "empty" }, calls === null ? "Not known." : "There is no fold: what is shown of past calls is whole."));
    rove(this.tabs.panels.context);
    this.past();
    this.changed();
    put(
      this.tabs.panels.near,
      fold?.near_misses.length
        ? [el("p", { class: "hint" }, "What would have come next with a larger budget."), fold.near_misses.map((p) => this.piece(p, ""))]
        : el("p", { class: "empty" }, "Nothing."),
    );
  }

  /** What the model answered: its text and its calls. */
  said(answer) {
    this.tabs.count("answer", answer?.calls.length);
    const none = this.step.step.error !== null ? "There is no answer: the provider failed." : "Not known: answers are kept of the latest steps that went through the proxy.";
    const call = (c) => el("article", { class: "message" }, el("h3", {}, "calls ", el("b", {}, told(c.name, "name"))), long(c.arguments));
    put(this.tabs.panels.answer, answer ? [answer.parts.length ? el("article", { class: "message" }, el("h3", {}, el("b", {}, "text")), long(answer.parts)) : "", answer.calls.map(call)] : el("p", { class: "empty" }, none));
  }

  /** What is not known of its cost, and where the provider's prefix cache ended. */
  notes(s) {
    const parts = [];
    if (s.untold !== null) parts.push(`What the provider counted is not known: ${s.untold}.`);
    else if (s.sent && s.sent_cost === null) parts.push(`No price of ${s.model} is known: add it to [prices] in the configuration.`);
    if (s.changed === "end") parts.push(`This context ends at message ${count(s.changed_at)} of the step before.`);
    else if (s.changed_at !== null) parts.push(`A prefix cache ends at message ${count(s.changed_at + 1)} (${s.changed}), the first that differs from the step before.`);
    return parts.length ? [el("br"), plainText(parts.join(" "))] : "";
  }

  why() {
    const s = this.step.step;
    if (without(s)) return "";
    if (s.status === "unchanged") return `The messages went through as they came${s.reason ? `: ${s.reason}` : ""}.`;
    if (this.step.calls === null) return "Only the figures of this step are kept.";
    if (s.fold === null) return "";
    if (!this.step.fold) return "What this step's fold showed is no longer stored.";
    return this.step.fold.records === null ? "Why this step's fold shows what it does is not known, or not yet." : "";
  }

  /** What became of the past calls, in shares. */
  strip(fates) {
    const known = FATES.filter((f) => fates?.[f]);
    if (!known.length) {
      put(this.fates);
      return;
    }
    const bar = el("div", { class: "strip", "aria-hidden": "true" });
    const legend = el("ul", { class: "legend", "aria-label": "What became of past calls" });
    for (const fate of known) {
      const share = el("span", { class: fateClass(fate) });
      share.style.flexGrow = fates[fate];
      bar.append(share);
      const where = link(this.name, "steps", this.number, "past", { fate });
      legend.append(el("li", {}, el("a", { href: where, class: fateClass(fate) }, sign(fate), `${count(fates[fate])} ${fate}`)));
    }
    put(this.fates, bar, legend);
  }

  // -- the fold

  /** The text of a fold, and of each call in it the pieces, with their worth; then what stands whole. */
  folded(fold, calls) {
    const most = Math.max(...fold.pieces.map((p) => p.score), 0.0001);
    const fresh = new Set((this.step.new ?? []).map((p) => JSON.stringify(p)));
    const groups = new Map();
    for (const p of fold.pieces) groups.set(p.trace_id, [...(groups.get(p.trace_id) ?? []), p]);
    const quotes = [...groups].map(([id, pieces]) => {
      const call = this.numbers.get(id);
      const fate = call?.fate ?? "shown in part";
      const lines = pieces.map((p) => ({ ...p, fate, number: call?.number, fresh: fresh.has(JSON.stringify(p)) }));
      const head = el("h3", {}, sign(fate), call ? el("b", {}, `#${count(call.number)} `) : "", el("a", { class: "record", href: link(this.name, "records", id) }, told(call?.tool ?? pieces[0].tool, "name")), el("span", { class: "dim" }, ` ${fate}`));
      return el("article", { class: `message past ${fateClass(fate)}` }, head, memoryText(lines, most, this.name));
    });
    const later = calls.filter((c) => c.number > fold.records && c.fate === "kept").length;
    const text = fold.text ? el("article", { class: "message memory" }, el("h3", {}, el("b", {}, `fold ${count(fold.number)}`), fold.records === null ? "" : el("span", { class: "dim" }, ` of the first ${plural(fold.records, "record")}`)), memoryText(textLines(fold.text, calls), most, this.name)) : "";
    return [text, quotes, el("p", { class: "gap" }, `${plural(later, "later call")} as they came, beside the messages of system, user and agent`)];
  }

  // -- past calls

  past() {
    const { calls, fates } = this.step ?? {};
    const panel = this.tabs.panels.past;
    if (!calls?.length) {
      put(panel, el("p", { class: "empty" }, calls ? "There was no past call." : "Not known."));
      return;
    }
    this.decisions = calls.filter((d) => !this.filter || d.fate === this.filter).reverse();
    const all = Object.values(fates).reduce((sum, n) => sum + n, 0);
    const choices = ["", ...FATES.filter((f) => fates[f])].map((fate) => {
      const where = link(this.name, "steps", this.number, "past", { fate });
      return el("a", { class: `chip ${fate ? fateClass(fate) : ""}`, href: where, "aria-current": fate === this.filter ? "true" : null }, fate ? sign(fate) : "", `${fate || "all"} ${count(fate ? fates[fate] : all)}`);
    });
    const omitted = all > calls.length ? el("p", { class: "hint" }, `${plural(all - calls.length, "older call")} counted above, but not listed here; `, el("a", { href: link(this.name, "records") }, "all records"), " are.") : "";
    put(panel, el("div", { class: "bar chips" }, choices), omitted, el("div", { class: "scroll" }, this.pastRows.element), this.reason);
    this.tell(null);
    this.pastRows.renew();
    this.pastRows.set(this.decisions.length);
  }

  /** The whole of a decision, which its row has no room for. */
  tell(d) {
    if (!d) put(this.reason, el("span", { class: "dim" }, "The whole reason of a call stands here once it is chosen."));
    else put(this.reason, el("span", { class: fateClass(d.fate) }, sign(d.fate)), el("b", {}, d.fate), d.worth === null ? "" : `, worth ${d.worth.toFixed(3)}`, ": ", told(d.reason));
  }

  decision(d) {
    return el(
      "div", { class: `decision ${fateClass(d.fate)}` },
      el(
        "span", { class: "first" },
        el("span", { class: "fate" }, sign(d.fate), d.fate),
        el("span", { class: "calls" }, el("a", { href: link(this.name, "records", d.trace_id) }, el("b", {}, `#${count(d.number)} `), told(d.tool, "name"))),
        el("span", { class: "number" }, d.worth === null ? "" : d.worth.toFixed(2)),
      ),
      el("span", { class: "second dim" }, told(d.reason)),
    );
  }

  // -- changes

  changed() {
    const panel = this.tabs.panels.changes;
    const { calls, changes } = this.step;
    if (changes === null) {
      put(panel, el("p", { class: "empty" }, calls && this.number === 1 ? "This is the first step: there is nothing to compare with." : "Not known."));
      return;
    }
    const groups = [
      ["New since the step before", this.step.new.map((p) => this.piece(p, "new"))],
      ["Gone since the step before", this.step.gone.map((p) => this.piece(p, "gone"))],
      ["Another fate than a step before", changes.slice(0, 200).map((c) => this.turned(c))],
    ].filter(([, made]) => made.length);
    put(panel, groups.length ? groups.map(([title, made]) => [el("h3", { class: "group" }, title, el("span", { class: "count" }, count(made.length))), made]).flat(2) : el("p", { class: "empty" }, "Nothing changed since the step before."));
  }

  piece(p, mark) {
    const call = this.numbers.get(p.trace_id);
    const record = el("a", { href: recordLink(this.name, p) }, call ? el("b", {}, `#${count(call.number)} `) : "", told(p.tool, "name"));
    return el(
      "article", { class: `piece-card ${mark}` },
      el("h4", {}, mark ? el("span", { class: `chip ${mark}` }, mark) : "", record, el("span", { class: "number dim" }, `worth ${p.score.toFixed(2)}`)),
      el("pre", {}, visible(p.text)),
      mark === "gone" ? "" : explanation(p),
    );
  }

  turned(c) {
    const call = el("a", { href: link(this.name, "records", c.trace_id) }, el("b", {}, `#${count(c.number)} `), told(c.tool, "name"));
    return el(
      "p", { class: "turned" },
      call, " ", el("span", { class: fateClass(c.before) }, sign(c.before), c.before), " \u2192 ", el("span", { class: fateClass(c.now) }, sign(c.now), c.now),
    );
  }
}

export const sign = (fate) => el("span", { class: "sign", "aria-hidden": "true" }, fateSign(fate));

/** Where a piece came from, its likeliest value looked for. */
export const recordLink = (name, p) => link(name, "records", p.trace_id, { find: p.values?.[0]?.value?.toWellFormed() });

/** A text in parts, its beginning first where it is long. */
function long(parts) {
  const only = parts.length === 1 && parts[0].text;
  if (only) parts = [{ ...parts[0], text: laidOut(ofMcp(only) ?? only) ?? ofMcp(only) ?? only }];
  const size = parts.reduce((n, p) => n + (p.text?.length ?? 0), 0);
  const cut = parts.some((p) => p.left_out);
  if (!size) return "";
  const box = el("pre", {});
  const whole = () => put(box, parts.map((p) => (p.left_out ? el("span", { class: "gap" }, `\u2026 ${plural(p.left_out, "character")} not kept here \u2026`) : visible(p.text))));
  if (size <= 1.5 * SHOWN) {
    whole();
    return box;
  }
  put(box, visible(parts[0].text.slice(0, SHOWN)), "\u2026");
  const more = el("button", { type: "button", class: "small" }, `Show all ${plural(size, "character")}${cut ? " that are kept" : ""}`);
  more.addEventListener("click", () => {
    whole();
    more.remove();
  });
  return [box, more];
}
