// The sessions, newest first: found by name or task, opened by link, kept up to date; a search in the records of all.

import { Failure, Poll, get } from "./api.js";
import { el, plainText, put, told } from "./dom.js";
import { ago, plural } from "./format.js";
import { Hits } from "./hits.js";
import { link } from "./route.js";
import { Rows } from "./rows.js";

const PAGE = 100;

export class Sessions {
  constructor(box) {
    this.list = [];
    this.next = null;
    this.current = null;
    this.query = "";
    this.asked = 0;
    this.field = el("input", {
      type: "search", id: "find-session", placeholder: "Find a session or a record", autocomplete: "off", spellcheck: "false",
      "aria-label": "Find a session by its name or task, or a record by its contents", oninput: () => this.search(),
    });
    this.told = el("p", { class: "empty", role: "status" });
    this.hits = new Hits("v1/search");
    this.trouble = document.getElementById("trouble");
    this.rows = new Rows({ label: "Sessions, newest first", height: 56, row: (i) => this.row(i), sign: (i) => this.sign(i), need: (_, to) => this.more(to) });
    put(box, el("div", { class: "bar" }, this.field), el("div", { class: "scroll" }, this.told, this.rows.element, this.hits.told, this.hits.list));
    this.poll = new Poll(5000, () => this.refresh());
  }

  start() {
    this.poll.start();
  }

  search() {
    clearTimeout(this.typing);
    this.typing = setTimeout(async () => {
      this.query = this.field.value;
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
    const page = await get("v1/sessions", { limit: PAGE, q: this.query });
    if (asked !== this.asked) return;
    const names = new Set(page.sessions.map((s) => s.name));
    const rest = this.list.length > PAGE ? this.list.slice(PAGE).filter((s) => !names.has(s.name)) : [];
    this.list = [...page.sessions, ...rest];
    if (!rest.length) this.next = page.next;
    this.rows.set(this.list.length);
    this.choose(this.current);
    const nothing = this.query ? "No session has this in its name or task." : "No session yet: point an agent's base_url here.";
    put(this.told, page.notice ? `Latest requests: ${page.notice}.` : this.list.length ? "" : nothing);
    this.told.hidden = this.list.length > 0 && !page.notice;
    if (this.trouble.textContent === (page.trouble ?? "")) return; // an alert that is put anew is read aloud anew
    put(this.trouble, page.trouble ?? "");
    this.trouble.hidden = !page.trouble;
  }

  async more(to) {
    if (!this.next || to < this.list.length || this.loading) return;
    this.loading = true;
    try {
      const page = await get("v1/sessions", { limit: PAGE, q: this.query, after: this.next });
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
    return JSON.stringify([s.name, s.task, ago(s.last_written ?? s.created)]);
  }

  row(index) {
    const s = this.list[index];
    const when = s.last_written ?? s.created;
    return el(
      "a", { href: link(s.name), title: plainText(s.name) },
      el("span", { class: "first" }, told(s.name, "name"), el("span", { class: "dim" }, ago(when))),
      el("span", { class: "second dim" }, told(s.task || plural(s.records, "record"))),
    );
  }
}
