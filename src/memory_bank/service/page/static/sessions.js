// The sessions: sorted, filtered, found by name or task, kept up to date; a search in the contents of all.

import { Failure, Poll, get } from "./api.js";
import { el, plainText, put, told } from "./dom.js";
import { ago, count, dollars, less, moment, plural, titled } from "./format.js";
import { Hits } from "./hits.js";
import { link, wrong } from "./route.js";
import { Rows } from "./rows.js";

const PAGE = 100;
const SORTS = { created: "Newest first", used: "Last used first", saved: "Most saved first", lost: "Dearer than without first", cost: "Most expensive first", errors: "Most errors first", steps: "Most steps first" };
const ONLY = { all: "All sessions", errors: "With provider errors", without_memory: "Without memory at times" };

export class Sessions {
  constructor(box) {
    this.list = [];
    this.next = null;
    this.current = null;
    this.query = "";
    this.sort = "created";
    this.only = this.model = "";
    this.asked = 0;
    this.field = el("input", {
      type: "search", id: "find-session", placeholder: "Search sessions and all contents", autocomplete: "off", spellcheck: "false",
      "aria-label": "Find a session by its name or task, or what any session holds", oninput: () => this.search(),
    });
    const options = (of) => Object.entries(of).map(([value, name]) => el("option", { value }, name));
    this.sorting = el("select", { "aria-label": "Order of the sessions", onchange: () => this.search() }, options(SORTS));
    this.models = el("optgroup", { label: "With the model" });
    this.filter = el("select", { "aria-label": "Which sessions are listed", onchange: () => this.search() }, options(ONLY), this.models);
    this.told = el("p", { class: "empty", role: "status" });
    this.hits = new Hits("v1/search");
    this.found = el("h2", { class: "group", hidden: true }, "In the contents of all sessions");
    this.trouble = document.getElementById("trouble");
    this.rows = new Rows({ label: "Sessions", height: 74, row: (i) => this.row(i), sign: (i) => this.sign(i), need: (_, to) => this.more(to) });
    const overview = el("a", { class: "button overview", href: "#/overview" }, "Today: savings, costs, errors");
    put(box, el("div", { class: "bar" }, overview, this.field, this.sorting, this.filter), el("div", { class: "scroll" }, this.told, this.rows.element, this.found, this.hits.told, this.hits.list));
    this.poll = new Poll(5000, () => this.refresh());
  }

  start() {
    this.poll.start();
  }

  search() {
    clearTimeout(this.typing);
    this.typing = setTimeout(async () => {
      this.query = this.field.value;
      this.sort = this.sorting.value;
      const model = this.filter.selectedOptions[0]?.dataset.model;
      const only = this.filter.value === "all" ? "" : this.filter.value;
      [this.only, this.model] = model === undefined ? [only, ""] : ["", model];
      this.found.hidden = !this.query.trim();
      this.list = [];
      this.next = null;
      const found = this.hits.search(this.query.trim());
      await this.refresh().catch((e) => put(this.told, e.message));
      await found;
    }, 200);
  }

  /** The newest page again; what was loaded beyond it stays. */
  async refresh() {
    const asked = ++this.asked;
    const page = await get("v1/sessions", this.asking());
    if (asked !== this.asked) return;
    const names = new Set(page.sessions.map((s) => s.name));
    const rest = this.list.length > PAGE ? this.list.slice(PAGE).filter((s) => !names.has(s.name)) : [];
    this.list = [...page.sessions, ...rest];
    if (!rest.length) this.next = page.next;
    this.rows.set(this.list.length);
    this.choose(this.current);
    const filtered = this.only || this.model ? "No session is of this kind." : "No session yet.";
    const nothing = this.query ? "No session has this in its name or task." : filtered;
    put(this.told, page.notice ? `Latest requests: ${page.notice}.` : this.list.length ? "" : nothing);
    this.told.hidden = this.list.length > 0 && !page.notice;
    if (this.trouble.textContent === (page.trouble ?? "")) return; // an alert that is put anew is read aloud anew
    put(this.trouble, page.trouble ?? "");
    this.trouble.hidden = !page.trouble;
  }

  asking = () => ({ limit: PAGE, q: this.query, sort: this.sort, only: this.only, model: this.model });

  /** The models that sessions can be filtered by. */
  offer(models) {
    if (models.join() === this.offered) return;
    this.offered = models.join();
    put(this.models, models.map((model) => el("option", { "data-model": model, selected: model === this.model }, model)));
  }

  async more(to) {
    if (!this.next || to < this.list.length || this.loading) return;
    this.loading = true;
    try {
      const page = await get("v1/sessions", { ...this.asking(), after: this.next });
      const known = new Set(this.list.map((s) => s.name));
      this.list.push(...page.sessions.filter((s) => !known.has(s.name)));
      this.next = page.next;
      this.rows.set(this.list.length);
    } catch (error) {
      if (!(error instanceof Failure)) throw error; // asked for again with the next look
    } finally {
      this.loading = false;
    }
  }

  choose(name) {
    const quietly = name === this.current;
    this.current = name;
    this.rows.choose(this.list.findIndex((s) => s.name === name), quietly);
  }

  sign(index) {
    const s = this.list[index];
    return JSON.stringify([s.name, s.title, s.task, ago(s.last_used), s.tokens, s.sent_cost, s.errors, s.without_memory]);
  }

  row(index) {
    const s = this.list[index];
    const figures = [
      s.tokens.steps ? plural(s.tokens.steps, "step") : plural(s.records, "record"), s.tokens.steps ? less(s.tokens.sent, s.tokens.full) : "", s.sent_cost === null ? "" : dollars(s.sent_cost), s.models[0] ? plainText(s.models[0]) : "",
    ];
    const bad = (only, told) => (s[only] ? [el("a", { class: "bad", href: wrong({ only, session: s.name }) }, told), " \u00b7 "] : "");
    return el(
      "div", { class: "entry" },
      el(
        "a", { class: "whole", href: link(s.name), title: plainText(s.name) },
        el("span", { class: "first" }, el("b", {}, told(titled(s))), el("span", { class: "dim", title: moment(s.last_used) }, ago(s.last_used))),
        el("span", { class: "second dim" }, told(s.name, "name"), s.title && s.task ? [" \u00b7 ", told(s.task)] : ""),
      ),
      el("span", { class: "second" }, bad("errors", plural(s.errors, "error")), bad("without_memory", `${count(s.without_memory)} without memory`), figures.filter(Boolean).join(" \u00b7 ")),
    );
  }
}
