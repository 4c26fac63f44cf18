// A record: what was asked of a tool, what it answered to the letter, and how that was summarised.

import { Failure, at, beginningOf, change, get, rawText, save } from "./api.js";
import { copier, el, put, told, visible } from "./dom.js";
import { bytes, count, fateClass, moment, ofMcp } from "./format.js";
import { HereLines, LinesView, StoredLines, laidOut } from "./lines.js";
import { link } from "./route.js";
import { sign } from "./step.js";

const WHOLE = 2 * 2 ** 20; // bytes of an answer up to which it is fetched whole

export class RecordView {
  /** `back()` is where the page was before; `opened(number)` is told which record it is. */
  constructor(box, name, back, opened) {
    Object.assign(this, { box, name, back, opened });
  }

  close() {
    this.asking?.abort();
  }

  async show(id, find) {
    if (id === this.id && this.lines) {
      if (find) this.lines.find(find);
      return;
    }
    this.id = id;
    this.lines = null;
    this.asking?.abort();
    this.asking = new AbortController();
    const title = el("h2", { id: "detail-title", tabindex: "-1" }, "Record");
    const head = el("div", { class: "head" }, el("a", { class: "up", href: this.back() }, told(this.name, "name")), el("div", { class: "title" }, title));
    const body = el("div", { class: "panel record", tabindex: "0", role: "group", "aria-label": "The record" });
    put(this.box, head, body);
    this.box.setAttribute("aria-busy", "true");
    try {
      const record = await this.fetched(id, this.asking.signal);
      put(title, `#${count(record.number)} `, told(record.tool_name, "name"));
      this.opened(record.number);
      await this.draw(head, body, record, find ?? "");
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Failure)) throw error;
      put(body, el("p", { class: "note", role: "status" }, error.message));
    } finally {
      this.box.removeAttribute("aria-busy");
    }
  }

  /** The record; of a long one only its head, its answer stays where it is. */
  async fetched(id, signal) {
    const path = at(this.name, "records", id);
    const head = await beginningOf(path, signal);
    if (head.input_bytes + head.output_bytes > WHOLE) return { ...head, input: null, answer: null };
    const whole = await get(path, {}, signal);
    const answer = whole.output_text ?? (await rawText(path, signal)); // JSON numbers as they were written
    return { ...whole, input: whole.input_text ?? JSON.stringify(whole.raw_input), answer };
  }

  async draw(head, body, r, find) {
    head.append(
      el("p", { class: "figures" }, el("code", {}, told(r.trace_id)), " ", copier("Copy id", async () => r.trace_id), el("span", { class: "dim" }, ` \u00b7 step ${count(r.step_id)} \u00b7 ${moment(r.timestamp)}`)),
    );
    const path = at(this.name, "records", r.trace_id);
    this.life = el("div", { class: "life" });
    const living = this.live(path);
    head.append(this.forgetting(path, r.mark, body));
    const keep = el("button", { type: "button", class: "small", onclick: () => save(path, { raw: 1 }, `${r.trace_id}.txt`) }, "Save");
    const text = r.answer === null ? null : ofMcp(r.answer); // of an MCP server, without its envelope
    const laid = r.answer === null ? null : (laidOut(text ?? r.answer) ?? text);
    const form = laid === null ? [] : [el("button", { type: "button", "aria-pressed": "true", onclick: () => this.reform(form[0], r.answer, laid) }, text === null ? "Laid out" : "Text alone")];
    this.lines = new LinesView(r.answer === null ? new StoredLines(this.name, r.trace_id) : new HereLines(laid ?? r.answer), form);
    const asked = r.input === null ? [el("p", { class: "empty" }, `${bytes(r.input_bytes)}: too long to be shown beside its answer.`)] : [el("pre", { class: "asked" }, visible(laidOut(r.input) ?? r.input))];
    put(
      body, this.life,
      el("h3", { class: "group" }, "Summary", el("span", { class: "dim" }, r.insight ? `by ${r.insight.source === "extractive" ? "extraction" : r.insight.source.replace(/^llm:/, "")}` : "")),
      r.insight ? el("p", { class: "summary" }, told(r.insight.summary)) : el("p", { class: "empty" }, "There is none (yet)."),
      r.insight?.redo ? el("p", { class: "hint" }, "To be made again: ", told(r.insight.redo)) : "",
      r.insight && r.insight.attempts !== null ? el("p", { class: "hint" }, `It waits for a language model${r.insight.attempts ? `, tried ${count(r.insight.attempts)} times` : ""}.`) : "",
      el("h3", { class: "group" }, "Asked", r.input === null ? "" : copier("Copy", async () => r.input)), asked,
      el("h3", { class: "group" }, "Answered", el("span", { class: "dim" }, bytes(r.output_bytes)), r.answer === null ? "" : copier("Copy", async () => r.answer), keep),
      this.lines.element,
    );
    await Promise.all([this.lines.find(find), living]);
  }

  /** What the contexts showed of it, from step to step, and why no more. */
  async live(path) {
    const { spans } = await get(`${path}/life`).catch(() => ({ spans: [] }));
    if (!spans.length) return;
    const end = spans.at(-1).last;
    const words = { kept: "whole", "shown in part": "quoted", listed: "listed", "left out": "left out" };
    const step = (n) => el("a", { href: link(this.name, "steps", n) }, count(n));
    const when = (s) => (s.first === s.last ? ["in step ", step(s.first)] : s.last === end ? ["since step ", step(s.first)] : ["from step ", step(s.first), " to ", step(s.last)]);
    const rows = spans.map((s) => el("li", { class: s.fate ? fateClass(s.fate) : "" }, sign(s.fate), el("b", {}, words[s.fate] ?? "not known"), " ", when(s), el("span", { class: "dim" }, this.because(s))));
    put(this.life, el("h3", { class: "group" }, "What the model saw of it"), el("ul", {}, rows));
  }

  because(s) {
    if (s.as_it_came) return ": the messages were sent as they came";
    if (s.fate === null) return ": the contexts of these steps are not kept";
    if (s.fate === "kept") return ": among the latest calls, or all of it was chosen";
    if (s.least === null) return s.reason ? [": ", told(s.reason)] : "";
    const [worth, least] = [s.worth, s.least].map((n) => (n === null ? null : n.toPrecision(2)));
    const few = worth === null ? `it was worth less than ${least}, the least that was shown` : `it was worth ${worth} where ${least} was the least that was shown`;
    const why = s.fate === "shown in part" ? `its best piece was worth ${worth}, the least that was shown ${least}` : s.worth > s.least ? `it was worth ${worth}, and its length had no room` : few;
    const others = s.likelier.map((p, i) => [i ? ", " : "", el("a", { href: p.trace_id ? link(this.name, "records", p.trace_id, { find: p.value.toWellFormed() }) : null }, told(p.value, "name"))]);
    return [`: ${why}`, others.length ? ["; other pieces were likelier to be needed: ", others] : ""];
  }

  /** The button by which a person has the record's content deleted, or the note that it was. */
  forgetting(path, mark, body) {
    if (mark === "forgotten") return el("p", { class: "note" }, "This record is forgotten: its content was deleted.");
    const forget = el("button", { type: "button", class: "small", title: "Delete its content for good" }, "Forget");
    const bar = el("p", { class: "figures", role: "group", "aria-label": "What becomes of this record" }, forget);
    forget.addEventListener("click", async () => {
      if (forget.dataset.sure !== "1") {
        forget.dataset.sure = "1";
        put(forget, "Delete for good?");
        return;
      }
      try {
        await change("DELETE", path);
        put(body);
        bar.replaceWith(this.forgetting(path, "forgotten", body));
      } catch (error) {
        if (!(error instanceof Failure)) throw error;
        put(body, el("p", { class: "note", role: "status" }, error.message));
      }
    });
    return bar;
  }

  reform(button, answer, laid) {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    this.lines.take(new HereLines(on ? laid : answer));
  }
}
