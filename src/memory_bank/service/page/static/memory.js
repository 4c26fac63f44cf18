// What a fold shows of records, line by line: what each line shows, its worth, and why.

import { el, told, visible } from "./dom.js";
import { count, fateClass, fateSign } from "./format.js";
import { link } from "./route.js";

const AT_ONCE = 300; // lines that are elements before "show more"

/** The lines of a fold's text; a line that names a call has the call's fate and id. */
export function textLines(text, calls) {
  const known = new Map(calls.map((c) => [c.number, c]));
  return text.split("\n").map((line) => ({ ...known.get(Number(/^#(\d+)(?= |$)/.exec(line)?.[1])), text: line }));
}

/** Lines as they stand in a context: plain text, calls that are named, and pieces of records with their worth. */
export function memoryText(lines, most, name) {
  const box = el("div", { class: "memory-text" });
  let shown = 0;
  const more = el("button", { type: "button", class: "small" });
  const add = () => {
    const next = lines.slice(shown, shown + AT_ONCE);
    shown += next.length;
    box.append(...next.map((line) => row(line, most, name)));
    more.textContent = `Show ${count(Math.min(AT_ONCE, lines.length - shown))} of ${count(lines.length - shown)} more lines`;
    more.hidden = shown >= lines.length;
    if (box.parentElement) rove(box.closest(".panel"));
  };
  more.addEventListener("click", add);
  add();
  return [box, more];
}

function row(line, most, name) {
  if (line.trace_id === undefined) return el("div", { class: "line" }, el("span", { class: "gutter" }), el("span", { class: "text dim" }, visible(line.text)));
  const text = el("span", { class: "text" }, visible(line.text));
  if (line.score === undefined) {
    const open = el("a", { class: "gutter", href: link(name, "records", line.trace_id), "aria-label": `Record ${line.number}, ${line.fate}` }, fateSign(line.fate));
    return el("div", { class: `line call-line ${fateClass(line.fate)}` }, open, text);
  }
  const bar = el("span", { class: "worth" });
  bar.style.width = `${Math.max(6, (100 * line.score) / most)}%`;
  const why = el(
    "button",
    { type: "button", class: "gutter", "aria-expanded": "false", "aria-label": `${line.fate}, worth ${line.score.toFixed(2)}${line.fresh ? ", new since the step before" : ""}: why?` },
    bar, el("span", { class: "value" }, line.score.toFixed(2)),
  );
  const element = el("div", { class: `line piece ${fateClass(line.fate)} ${line.fresh ? "new" : ""}` }, why, text);
  const toggle = () => {
    const open = element.nextElementSibling;
    const shown = open?.classList.contains("why");
    if (shown) open.remove();
    else element.after(reasons(line, name));
    why.setAttribute("aria-expanded", String(!shown));
  };
  why.addEventListener("click", toggle);
  text.addEventListener("click", () => getSelection().isCollapsed && toggle());
  return element;
}

function reasons(piece, name) {
  const find = piece.values[0]?.value?.toWellFormed();
  const record = el("a", { href: link(name, "records", piece.trace_id, { find }) }, piece.number ? `Record #${count(piece.number)}` : "Its record", " ", told(piece.tool, "name"));
  return el(
    "div", { class: "why" },
    el("p", {}, el("b", {}, piece.fate), `, worth ${piece.score.toFixed(3)}`, piece.fresh ? ", new since the step before" : "", " \u00b7 ", record),
    explanation(piece),
  );
}

/** Why a piece was worth showing: its likeliest values, their chances, what speaks for and against each. */
export function explanation(piece) {
  if (!piece.values.length) return "";
  const chances = piece.values.map((v) => {
    const bar = el("span", { class: "chance" });
    bar.style.width = `${100 * v.probability}%`;
    return el("li", {}, el("span", { class: "chances", "aria-hidden": "true" }, bar), el("span", { class: "number" }, `${Math.round(100 * v.probability)}%`), " ", el("code", {}, told(v.value)));
  });
  const odds = ([feature, n]) => el("span", { class: n < 0 ? "against" : "for" }, `${n < 0 ? "\u2212" : "+"}${Math.abs(n).toFixed(2)} ${feature.replaceAll("_", " ")}`);
  const raw = piece.values.map((v) => el("p", { class: "features" }, el("code", {}, told(v.value)), Object.entries(v.features).map(odds)));
  return [el("p", { class: "dim" }, "How likely the next calls are to need it:"), el("ul", { class: "values" }, chances), el("details", {}, el("summary", {}, "The figures behind it"), raw)];
}

const STOPS = ".line > button.gutter, .line > a.gutter, .message a.record";

/** One stop for the Tab key among all lines of a context and the links to its records. */
export function rove(panel) {
  const stops = [...panel.querySelectorAll(STOPS)];
  const reached = stops.find((s) => s.tabIndex === 0 && s === document.activeElement) ?? stops[0];
  for (const stop of stops) stop.tabIndex = stop === reached ? 0 : -1;
}

/** Arrow keys go from line to line, from one message to the next. */
export function move(event, panel) {
  const stops = [...panel.querySelectorAll(STOPS)];
  const at = stops.indexOf(event.target);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: stops.length - 1 }[event.key];
  if (at < 0 || to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  const next = stops[Math.max(0, Math.min(stops.length - 1, to))];
  for (const stop of stops) stop.tabIndex = stop === next ? 0 : -1;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}
