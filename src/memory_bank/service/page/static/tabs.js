// Tabs: one panel at a time, arrow keys between them; which is shown is the address's to say.

import { el } from "./dom.js";
import { count } from "./format.js";
import { go } from "./route.js";

export class Tabs {
  /**
   * `tabs` are [key, title, address()] each; `id` begins the ids of tabs and panels. Panels are stops of the Tab
   * key, so that arrow keys scroll them; not where they hold `lists`, which are stops themselves.
   */
  constructor(id, tabs, lists = []) {
    this.tabs = {};
    this.panels = {};
    this.keys = tabs.map(([key]) => key);
    this.list = el("div", { role: "tablist", class: "tabs", onkeydown: (e) => this.key(e) });
    for (const [key, title, address] of tabs) {
      const stop = lists.includes(key) ? null : "0";
      const counted = el("span", { class: "count" });
      const tab = el(
        "button",
        { type: "button", role: "tab", id: `${id}-${key}`, "aria-controls": `${id}-${key}-panel`, onclick: () => go(address()) },
        title, counted,
      );
      this.tabs[key] = { tab, counted, address };
      this.panels[key] = el("div", { role: "tabpanel", class: `panel ${key}`, id: `${id}-${key}-panel`, "aria-labelledby": `${id}-${key}`, tabindex: stop });
      this.list.append(tab);
    }
  }

  show(shown) {
    this.shown = shown;
    for (const key of this.keys) {
      const on = key === shown;
      this.tabs[key].tab.setAttribute("aria-selected", on);
      this.tabs[key].tab.tabIndex = on ? 0 : -1;
      this.panels[key].hidden = !on;
    }
  }

  count(key, n) {
    this.tabs[key].counted.textContent = n ? count(n) : "";
  }

  key(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const next = this.keys[(this.keys.indexOf(this.shown) + by + this.keys.length) % this.keys.length];
    go(this.tabs[next].address(), true);
    this.tabs[next].tab.focus();
  }
}
