// A list of any length of which only the rows in sight are elements; arrow keys move along it.

import { el } from "./dom.js";

const BEYOND = 6; // rows beyond the edges

export class Rows {
  /**
   * `row(index)` gives a row's content, with a link or button in it. `sign(index)` tells by a text what it shows: a
   * row that shows the same stays the element it is, under the pointer, the focus and a selection.
   * `height` of a row in pixels; `need(from, to)` is told what is in sight; `moved(index)` when arrow keys move.
   */
  constructor({ label, height, row, sign, need = () => {}, moved = null }) {
    Object.assign(this, { height, row, sign, need, moved });
    this.count = 0;
    this.active = 0;
    this.current = -1;
    this.shown = new Map(); // index → its element
    this.element = el("ul", { class: "rows", "aria-label": label });
    this.element.addEventListener("keydown", (e) => this.key(e));
    this.element.addEventListener("focusin", (e) => {
      const index = Number(e.target.closest("li")?.dataset.index);
      if (Number.isInteger(index)) this.mark(index);
    });
    this.onscroll = () => this.draw();
    this.watcher = new ResizeObserver(() => this.attach());
    this.watcher.observe(this.element);
  }

  /** Find what scrolls around the list, which the width of the page decides. */
  attach() {
    let box = this.element.parentElement;
    while (box && !["auto", "scroll"].includes(getComputedStyle(box).overflowY)) box = box.parentElement;
    if (box !== this.box) {
      this.box?.removeEventListener("scroll", this.onscroll);
      this.box = box;
      box?.addEventListener("scroll", this.onscroll, { passive: true });
      if (box) this.watcher.observe(box);
    }
    this.draw();
  }

  detach() {
    this.watcher.disconnect();
    this.box?.removeEventListener("scroll", this.onscroll);
  }

  /** So many rows now. `added`: so many of them new at the top, below which the reader's place stays. */
  set(count, added = 0) {
    const focused = this.element.contains(document.activeElement);
    const scrolled = this.box && this.element.offsetParent && added ? this.place().top > 0 : false; // a hidden list has no place
    this.count = count;
    this.active = Math.max(0, Math.min(count - 1, this.active + added));
    if (this.current >= 0) this.current += added;
    const moved = [...this.shown].map(([index, item]) => [index + added, item]);
    this.shown = new Map(moved.filter(([index]) => index < count));
    for (const [index, item] of moved) {
      if (index < count) this.seat(item, index);
      else item.remove();
    }
    this.element.style.height = `${count * this.height}px`;
    if (scrolled) this.box.scrollTop += added * this.height;
    this.redraw();
    if (focused && !this.element.contains(document.activeElement) && count) this.focus(this.active);
  }

  /** The rows anew whose content is another one now. */
  redraw() {
    const focused = this.element.contains(document.activeElement);
    for (const [index, item] of this.shown) {
      if (item.sign === this.sign(index)) continue;
      item.remove();
      this.shown.delete(index);
    }
    this.draw();
    if (focused && !this.element.contains(document.activeElement)) this.focus(this.active);
  }

  /** Every row anew. */
  renew() {
    for (const item of this.shown.values()) item.remove();
    this.shown.clear();
    this.active = 0;
  }

  /** Which row is the one that is looked at elsewhere; brought into sight. */
  choose(index, quietly = false) {
    const before = this.current;
    this.current = index;
    for (const i of [before, index]) this.tell(i);
    if (!this.element.contains(document.activeElement)) this.mark(Math.max(0, index));
    if (index >= 0 && !quietly) this.reveal(index);
  }

  tell(index) {
    const stop = this.shown.get(index)?.querySelector("a, button");
    if (index === this.current) stop?.setAttribute("aria-current", "true");
    else stop?.removeAttribute("aria-current");
  }

  place() {
    const box = this.box.getBoundingClientRect();
    return { top: box.top - this.element.getBoundingClientRect().top, height: this.box.clientHeight };
  }

  draw() {
    if (!this.box || !this.count) {
      if (!this.count) for (const item of this.shown.values()) item.remove();
      if (!this.count) this.shown.clear();
      return;
    }
    if (!this.element.offsetParent) return; // on a tab that is not shown
    const { top, height } = this.place();
    const from = Math.max(0, Math.floor(top / this.height) - BEYOND);
    const to = Math.min(this.count, Math.ceil((top + height) / this.height) + BEYOND);
    for (const [index, item] of this.shown) {
      const kept = (index >= from && index < to) || item.contains(document.activeElement);
      if (!kept) {
        item.remove();
        this.shown.delete(index);
      }
    }
    for (let index = from; index < to; index++) {
      if (!this.shown.has(index)) this.add(index);
    }
    if (to > from) this.need(from, to);
  }

  add(index) {
    const item = el("li", {}, this.row(index));
    item.sign = this.sign(index);
    this.seat(item, index);
    const after = [...this.element.children].find((other) => Number(other.dataset.index) > index);
    this.element.insertBefore(item, after ?? null);
    this.shown.set(index, item);
    this.tab(index);
    this.tell(index);
  }

  seat(item, index) {
    item.dataset.index = index;
    item.ariaSetSize = this.count;
    item.ariaPosInSet = index + 1;
    item.style.transform = `translateY(${index * this.height}px)`;
    item.style.height = `${this.height}px`;
  }

  tab(index) {
    const reach = this.shown.get(index)?.querySelectorAll("a, button") ?? [];
    reach.forEach((node, i) => (node.tabIndex = index === this.active && i === 0 ? 0 : -1));
  }

  mark(index) {
    const before = this.active;
    this.active = index;
    this.tab(before);
    this.tab(index);
  }

  reveal(index) {
    if (!this.box) return;
    const { top, height } = this.place();
    const y = index * this.height;
    if (y < top) this.box.scrollTop += y - top;
    else if (y + this.height > top + height) this.box.scrollTop += y + this.height - top - height;
    this.draw();
  }

  focus(index) {
    this.mark(index);
    this.reveal(index);
    if (!this.shown.has(index) && index < this.count) this.add(index);
    this.shown.get(index)?.querySelector("a, button")?.focus({ preventScroll: true });
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(1, Math.floor((this.box?.clientHeight ?? 0) / this.height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.count, End: this.count };
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const reach = [...event.target.closest("li").querySelectorAll("a, button")];
      const next = reach[reach.indexOf(event.target) + (event.key === "ArrowRight" ? 1 : -1)];
      if (!next) return;
      event.preventDefault();
      next.focus();
      return;
    }
    if (!(event.key in steps) || !this.count) return;
    event.preventDefault();
    const to = Math.max(0, Math.min(this.count - 1, this.active + steps[event.key]));
    this.focus(to);
    this.moved?.(to);
  }
}
