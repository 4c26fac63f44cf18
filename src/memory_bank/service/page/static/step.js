// A step: its context as sent, what became of every past call and why, what changed since the step before.

import { Failure, at, get } from "./api.js";
import { el, plainText, put, told, visible } from "./dom.js";
import { FATES, count, dollars, fateClass, fateSign, less, milliseconds, moment, ofMcp, plural, took, without } from "./format.js";
import { laidOut } from "./lines.js";
import { explanation, memoryText, move, rove } from "./memory.js";
import { go, link } from "./route.js";
import { Rows } from "./rows.js";
import { Tabs } from "./tabs.js";

const SHOWN = 1600; // characters of a message before "show all"
const CACHED = 30;
const PARTS = {
  anchor: { system: "always kept", developer: "always kept", user: "always kept", assistant: "said to the user" },
  memory: "what is remembered",
  tail: "latest call",
  past: "kept whole",
  other: "put in place",
};

const cache = new Map();

/** A step; kept unless it is the `last`, whose figures are final only once its answer has ended. */
async function fetched(name, number, last, signal) {
  const key = `${number} ${name}`;
  const known = cache.get(key);
  if (known) return known;
  const step = await get(at(name, "steps", number), {}, signal);
  if (step.manifest && number < last) cache.set(key, step);
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
      ["context", "Context", () => link(name, "steps", this.number)],
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

  /** The figures of a step as they are now; those shown are renewed where they differ. */
  renew(figures) {
    if (this.step?.step.number !== figures.number || JSON.stringify(this.step.step) === JSON.stringify(figures)) return;
    this.step.step = figures;
    this.head();
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
    const plan = this.step.manifest?.plan ?? null;
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
      plan?.memory_tokens ? `${count(plan.memory_tokens)} tokens of memory` : "", s.messages ? plural(s.messages, "message") : "", s.records ? plural(s.records, "record") : "", s.milliseconds ? `memory took ${milliseconds(s.milliseconds)}` : "",
    ].filter(Boolean);
    put(this.billed, facts.flatMap((fact, i) => (i ? [" \u00b7 ", fact] : [fact])), this.notes(s));
    const bare = without(s);
    put(this.error, s.error === null ? "" : [el("b", {}, s.http_status >= 400 ? `The provider answered ${s.http_status}: ` : "The provider failed: "), told(s.error)], s.error !== null && bare ? el("br") : "", bare ? [el("b", {}, "Without memory: "), `${bare}. The request went on as it came.`] : "");
    this.error.hidden = !this.error.textContent;
  }

  draw() {
    const { manifest } = this.step;
    const plan = manifest?.plan ?? null;
    this.head();
    this.strip(plan);
    put(this.note, this.why(manifest, plan));
    this.note.hidden = !this.note.textContent;
    this.tabs.count("context", manifest?.context_messages);
    this.tabs.count("past", plan ? Object.values(plan.fates).reduce((n, f) => n + f.interactions, 0) : 0);
    this.tabs.count("changes", plan ? this.fresh(plan).length + plan.gone.length + (this.step.changes?.length ?? 0) : 0);
    this.tabs.count("near", plan?.near_misses.length);
    this.said(this.step.answer);
    put(this.tabs.panels.context, (manifest?.context ?? []).map((m) => this.message(m, plan)));
    rove(this.tabs.panels.context);
    this.past();
    this.changed(plan);
    put(
      this.tabs.panels.near,
      plan?.near_misses.length
        ? [el("p", { class: "hint" }, "What would have come next with a larger budget."), plan.near_misses.map((p) => this.piece(p, ""))]
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

  why(manifest, plan) {
    if (!manifest) return without(this.step.step) ? "" : "Only the figures of this step are kept: contexts are kept of the latest steps, while not too many wait to be recorded.";
    if (plan?.unchanged) return `The messages went through as they came: ${plan.why_unchanged}.`;
    if (plan && manifest.explained === false) return "The next step followed at once, so the probabilities behind each choice are not recorded.";
    if (plan) return "";
    if (manifest.explained === false) return "The session was busy: the context is here, what became of past calls was not recorded.";
    return "This strategy makes no plan of past calls: the context is here, there are no scores and reasons.";
  }

  fresh = (plan) => (plan.first || plan.unchanged ? [] : plan.pieces.filter((p) => p.new));

  /** What became of the past, as shares of its tokens. */
  strip(plan) {
    const known = FATES.filter((f) => plan?.fates[f]?.interactions);
    if (!known.length) {
      put(this.fates);
      return;
    }
    const bar = el("div", { class: "strip", "aria-hidden": "true" });
    const legend = el("ul", { class: "legend", "aria-label": "What became of past calls" });
    for (const fate of known) {
      const of = plan.fates[fate];
      const share = el("span", { class: fateClass(fate) });
      share.style.flexGrow = Math.max(1, of.tokens);
      bar.append(share);
      const where = link(this.name, "steps", this.number, "past", { fate });
      const told = `${count(of.interactions)} ${fate}`;
      legend.append(el("li", {}, el("a", { href: where, class: fateClass(fate), title: `${count(of.tokens)} tokens in the full history` }, sign(fate), told)));
    }
    put(this.fates, bar, legend);
  }

  // -- the context

  message(m, plan) {
    if (m.left_out !== undefined && !m.role) return el("p", { class: "gap" }, `${plural(m.left_out, "message")} not kept here`);
    const kind = PARTS[m.part] ?? "";
    const label = typeof kind === "string" ? kind : (kind[m.role] ?? "always kept");
    const fate = m.fate ?? "kept"; // a message of a shortened turn has one of its own
    const head = el(
      "h3", {},
      m.part === "memory" ? "" : sign(fate), el("b", {}, told(m.role)), m.tool ? [" ", this.record(m.trace_id, m.tool)] : "",
      el("span", { class: "dim" }, ` ${m.fate ?? label}${m.part === "past" && m.step ? `, call ${m.step}` : ""}`),
      m.new ? el("span", { class: "chip new" }, "new") : "",
    );
    const text = (parts) => (m.part === "memory" || parts.some((p) => p.trace_id !== undefined) ? memoryText(parts, plan, this.name) : long(parts));
    const calls = m.calls.map((c) => el("div", { class: "call" }, el("b", {}, this.record(c.trace_id, c.name)), text(c.arguments)));
    return el("article", { class: `message ${m.part} ${m.part === "memory" ? "" : fateClass(fate)}` }, head, text(m.parts), calls);
  }

  /** The name of a tool; of a call in a shortened turn, a link to its record, which has the whole. */
  record = (id, tool) => (id ? el("a", { class: "record", href: link(this.name, "records", id) }, told(tool, "name")) : told(tool, "name"));

  // -- past calls

  past() {
    const plan = this.step?.manifest?.plan ?? null;
    const panel = this.tabs.panels.past;
    if (!plan?.decisions.length) {
      put(panel, el("p", { class: "empty" }, plan ? "There was no past call." : "Not known."));
      return;
    }
    this.decisions = plan.decisions.filter((d) => !this.filter || d.fate === this.filter).reverse();
    const choices = ["", ...FATES.filter((f) => plan.fates[f].interactions)].map((fate) => {
      const n = fate ? plan.fates[fate].interactions : Object.values(plan.fates).reduce((sum, f) => sum + f.interactions, 0);
      const where = link(this.name, "steps", this.number, "past", { fate });
      return el("a", { class: `chip ${fate ? fateClass(fate) : ""}`, href: where, "aria-current": fate === this.filter ? "true" : null }, fate ? sign(fate) : "", `${fate || "all"} ${count(n)}`);
    });
    const omitted = plan.decisions_omitted ? el("p", { class: "hint" }, `${plural(plan.decisions_omitted, "older call")} counted above, but not listed here; `, el("a", { href: link(this.name, "records") }, "all records"), " are.") : "";
    put(panel, el("div", { class: "bar chips" }, choices), omitted, el("div", { class: "scroll" }, this.pastRows.element), this.reason);
    this.tell(null);
    this.pastRows.renew();
    this.pastRows.set(this.decisions.length);
  }

  /** The whole of a decision, which its row has no room for. */
  tell(d) {
    if (!d) put(this.reason, el("span", { class: "dim" }, "The whole reason of a call stands here once it is chosen."));
    else put(this.reason, el("span", { class: fateClass(d.fate) }, sign(d.fate)), el("b", {}, d.fate), d.score === null ? "" : `, worth ${d.score.toFixed(3)}`, ": ", told(d.reason));
  }

  decision(d) {
    const links = d.trace_ids.map((id, i) =>
      el("a", { href: link(this.name, "records", id) }, d.numbers[i] ? el("b", {}, `#${count(d.numbers[i])} `) : "", told(d.tools[i] ?? "", "name")),
    );
    return el(
      "div", { class: `decision ${fateClass(d.fate)}` },
      el(
        "span", { class: "first" },
        el("span", { class: "fate" }, sign(d.fate), d.fate),
        el("span", { class: "calls" }, links.length ? links : told(d.tools.join(", "))),
        el("span", { class: "number" }, d.score === null ? "" : d.score.toFixed(2)),
        el("span", { class: "number dim" }, `${count(d.tokens)} tok`),
      ),
      el("span", { class: "second dim" }, told(d.reason)),
    );
  }

  // -- changes

  changed(plan) {
    const panel = this.tabs.panels.changes;
    if (!plan) {
      put(panel, el("p", { class: "empty" }, "Not known."));
      return;
    }
    const groups = [
      ["New since the step before", this.fresh(plan).map((p) => this.piece(p, "new"))],
      ["Gone since the step before", plan.gone.map((p) => this.piece(p, "gone"))],
      ["Another fate than a step before", (this.step.changes ?? []).slice(0, 200).map((c) => this.turned(c))],
    ].filter(([, made]) => made.length);
    const nothing = plan.first ? "This is the first step that was seen here: there is nothing to compare with." : "Nothing changed since the step before.";
    put(panel, groups.length ? groups.map(([title, made]) => [el("h3", { class: "group" }, title, el("span", { class: "count" }, count(made.length))), made]).flat(2) : el("p", { class: "empty" }, nothing));
  }

  piece(p, mark) {
    const number = p.number ? el("b", {}, `#${count(p.number)} `) : "";
    const record = p.trace_id ? el("a", { href: recordLink(this.name, p) }, number, told(p.tool, "name")) : told(p.tool);
    return el(
      "article", { class: `piece-card ${mark}` },
      el("h4", {}, mark ? el("span", { class: `chip ${mark}` }, mark) : "", record, el("span", { class: "number dim" }, `worth ${p.score.toFixed(2)}`)),
      el("pre", {}, visible(p.text)),
      mark === "gone" ? "" : explanation(p),
    );
  }

  turned(c) {
    const links = c.trace_ids.map((id, i) => el("a", { href: link(this.name, "records", id) }, told(c.tools[i] ?? "record", "name")));
    return el(
      "p", { class: "turned" },
      links, " ", el("span", { class: fateClass(c.before) }, sign(c.before), c.before), " \u2192 ", el("span", { class: fateClass(c.now) }, sign(c.now), c.now),
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
