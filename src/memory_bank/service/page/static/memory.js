// The texts of a context that quote records, line by line as sent: what each line shows, its worth, and why.

import { el, told, visible } from "./dom.js";
import { count, fateClass, fateSign } from "./format.js";
import { link } from "./route.js";

const AT_ONCE = 300; // lines that are elements before "show more"

/**
 * Lines of parts: pieces and what names a call on their own, the text between broken at its ends. `joined`: it goes on
 * with the line before it, as two quotes from one line do.
 */
function linesOf(parts) {
  const lines = [];
  let lead = "";
  let joined = false;
  for (const part of parts) {
    if (part.left_out) {
      lines.push({ text: `\u2026 ${count(part.left_out)} characters not kept here \u2026`, gap: true });
      continue;
    }
    if (part.trace_id === undefined) {
      const pieces = part.text.split("\n");
      for (const text of pieces.slice(0, -1)) {
        if (lead || text) lines.push({ text: lead + text, joined });
        lead = "";
        joined = false;
      }
      lead += pieces.at(-1);
      continue;
    }
    lines.push({ ...part, lead, joined });
    lead = "";
    joined = true;
  }
  if (lead) lines.push({ text: lead, joined });
  return lines;
}

export function memoryText(parts, plan, name) {
  const lines = linesOf(parts);
  const pieces = plan?.pieces ?? [];
  const most = Math.max(...pieces.map((p) => p.score), 0.0001);
  const box = el("div", { class: "memory-text" });
  let shown = 0;
  const more = el("button", { type: "button", class: "small" });
  const add = () => {
    const next = lines.slice(shown, shown + AT_ONCE);
    shown += next.length;
    box.append(...next.map((line) => row(line, pieces, most, name, plan)));
    more.textContent = `Show ${count(Math.min(AT_ONCE, lines.length - shown))} of ${count(lines.length - shown)} more lines`;
    more.hidden = shown >= lines.length;
    if (box.parentElement) rove(box.closest(".panel"));
  };
  more.addEventListener("click", add);
  add();
  return [box, more];
}

function row(line, pieces, most, name, plan) {
  const joined = line.joined ? "joined" : "";
  if (line.trace_id === undefined) return el("div", { class: `line ${joined}` }, el("span", { class: "gutter" }), el("span", { class: line.gap ? "text gap" : "text dim" }, visible(line.text)));
  const piece = pieces[line.piece];
  const text = el("span", { class: "text" }, line.lead ? el("span", { class: "dim" }, visible(line.lead)) : "", visible(line.text));
  if (!piece) {
    const open = el("a", { class: "gutter", href: link(name, "records", line.trace_id), "aria-label": `Record ${line.number}, ${line.fate}` }, fateSign(line.fate));
    return el("div", { class: `line call-line ${fateClass(line.fate)} ${joined}` }, open, text);
  }
  const fresh = piece.new && plan && !plan.first;
  const bar = el("span", { class: "worth" });
  bar.style.width = `${Math.max(6, (100 * piece.score) / most)}%`;
  const why = el(
    "button",
    { type: "button", class: "gutter", "aria-expanded": "false", "aria-label": `${line.fate}, worth ${piece.score.toFixed(2)}${fresh ? ", new since the step before" : ""}: why?` },
    bar, el("span", { class: "value" }, piece.score.toFixed(2)),
  );
  const element = el("div", { class: `line piece ${fateClass(line.fate)} ${fresh ? "new" : ""} ${joined}` }, why, text);
  const toggle = () => {
    const open = element.nextElementSibling;
    const shown = open?.classList.contains("why");
    if (shown) open.remove();
    else element.after(reasons(piece, line, name, fresh));
    why.setAttribute("aria-expanded", String(!shown));
  };
  why.addEventListener("click", toggle);
  text.addEventListener("click", () => getSelection().isCollapsed && toggle());
  return element;
}

function reasons(piece, line, name, fresh) {
  const find = piece.values?.[0]?.value?.toWellFormed();
  const record = line.trace_id ? el("a", { href: link(name, "records", line.trace_id, { find }) }, piece.number ? `Record #${count(piece.number)}` : "Its record", " ", told(piece.tool, "name")) : told(piece.tool);
  return el(
    "div", { class: "why" },
    el("p", {}, el("b", {}, line.fate), `, worth ${piece.score.toFixed(3)}`, fresh ? ", new since the step before" : "", " \u00b7 ", record),
    explanation(piece),
  );
}

/** Why a piece was worth showing: its likeliest values, their chances, what speaks for and against each. */
export function explanation(piece) {
  if (!piece.values?.length) return "";
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
