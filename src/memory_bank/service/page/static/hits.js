// Records that a search has found, best first, each with why.

import { Failure, get } from "./api.js";
import { el, marked, put, told } from "./dom.js";
import { count, plural } from "./format.js";
import { link } from "./route.js";

export class Hits {
  /** `path` of the API searches; records of the session `own` do not name it. */
  constructor(path, own = null) {
    Object.assign(this, { path, own });
    this.list = el("ol", { class: "hits", "aria-label": "Records that were found" });
    this.told = el("p", { class: "empty", role: "status" });
  }

  async search(wanted) {
    this.searching?.abort();
    this.searching = new AbortController();
    if (!wanted) {
      put(this.list);
      put(this.told, "");
      return;
    }
    try {
      const { hits, note } = await get(this.path, { q: wanted.slice(0, 8000), top_k: 20 }, this.searching.signal);
      put(this.told, hits.length ? plural(hits.length, "record") : "No record matches: try other words, a name or an id.", note ? ` ${note}` : "");
      put(this.list, hits.map((hit) => this.hit(hit)));
    } catch (error) {
      if (error instanceof Failure) put(this.told, error.message);
      else if (error.name !== "AbortError") throw error;
    }
  }

  hit(hit) {
    const find = (hit.holds ?? "").toWellFormed();
    const superseded = hit.newer ? "; superseded by a later record" : "";
    const has = hit.words.length ? ["has ", hit.words.map((w, i) => [i ? ", " : "", el("mark", {}, told(w))])].flat(2) : [hit.reason.split(";")[0]];
    const why = hit.holds ? ["holds ", el("mark", {}, told(hit.holds)), hit.place ? [" at ", told(hit.place)] : "", superseded].flat() : [...has, superseded];
    const elsewhere = hit.session === this.own ? "" : [" of ", told(hit.session, "name")];
    return el(
      "li", {},
      el(
        "a", { href: link(hit.session, "records", hit.trace_id, { find }) },
        el("span", { class: "first" }, el("span", {}, el("b", {}, `#${count(hit.number)} `), told(hit.tool_name, "name"), elsewhere), " ", el("span", { class: "dim why-found" }, why)),
        el("span", { class: "summary dim" }, marked(hit.summary ?? hit.excerpt, ...(hit.holds ? [hit.holds] : hit.words))),
      ),
    );
  }
}
