// Numbers, times and the words for what became of something.

const WHOLE = new Intl.NumberFormat("en");

export const count = (n) => WHOLE.format(n ?? 0);

/** 1,234 → 1.2k, so that a column stays narrow. */
export function short(n) {
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (n >= unit) return `${(n / unit).toFixed(n < 100 * unit ? 1 : 0)}${name}`;
  }
  return String(Math.round(n ?? 0));
}

/** How much less one number is than another, in words. */
export function less(part, whole) {
  if (!whole) return "";
  const share = Math.round(100 * (1 - part / whole));
  if (share > 0) return `${share}% less`;
  return share < 0 ? `${-share}% more` : "0% less";
}

/** The word between what was sent and the full history. */
export const beside = (sent, full) => (sent > full ? "instead of" : "of");

/** What a session is called in lists: its title, or else the beginning of its task, or its name. */
export const titled = (s) => s.title ?? (s.task.trim().split("\n")[0].slice(0, 80) || s.name);

/** A length in bytes, in few characters. */
export const bytes = (n) => (n < 1000 ? `${n} B` : `${short(n).replace(/[kMG]$/, " $&")}B`);

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** When something was, as 2026-11-26 13:05:22 in the reader's time zone; its day, its time of the day. */
export const moment = (seconds) => new Date(1000 * seconds).toLocaleString("sv-SE");
export const day = (seconds) => moment(seconds).slice(0, 10);
export const clock = (seconds) => moment(seconds).slice(11);

/** How long ago, in one unit. */
export function ago(seconds) {
  if (!seconds) return "";
  const gone = Math.max(0, Date.now() / 1000 - seconds);
  for (const [unit, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (gone >= unit) return `${Math.floor(gone / unit)} ${name} ago`;
  }
  return "now";
}

export const money = (n) => (n ? n.toFixed(n < 0.1 ? 4 : 2) : "0");

/** A sum of money by the configured prices, in dollars. */
export const dollars = (n) => `$${money(n)}`;

/** What calls cost, beside what the full history would have; what is missing where there is no price. */
export function costs(c) {
  if (c.sent !== null) {
    const rest = c.unpriced.length ? `; without ${c.unpriced.join(", ")}, of which no price is known` : "";
    return `${dollars(c.sent)} instead of ${dollars(c.full)}, ${c.compared}${rest}${untold(c)}`;
  }
  if (!c.models.length) return c.untold.length ? `not known${untold(c)}` : "the provider has not reported any usage yet";
  const [sent, full] = ["sent", "full"].map((kind) => c.models.reduce((sum, m) => sum + m[kind].input, 0));
  return `${short(sent)} of ${short(full)} input tokens; no price of ${c.unpriced[0]} is known: add it to [prices] in the configuration${untold(c)}`;
}

/** The calls that are in no sum, and why. */
export const untold = (c) => c.untold.map((u) => `; ${plural(u.calls, "call")} not counted: ${u.reason}`).join("");

/** What memory saved, in dollars where there is a price: a figure and a word, and whether it is a loss. */
export function saved(sent, full, sentCost = null, fullCost = null) {
  const [paid, would] = sentCost === null ? [sent, full] : [sentCost, fullCost];
  const figure = (n) => (sentCost === null ? `${short(n)} tokens` : dollars(n));
  return { figure: figure(Math.abs(would - paid)), word: paid > would ? "more" : "saved", loses: paid > would, paid: figure(paid), would: figure(would) };
}

/** The text within what an MCP server answers, or null for anything else. */
export function ofMcp(text) {
  if (!/^\s*[[{]/.test(text) || text.length > 4_000_000) return null;
  let parts;
  try {
    parts = JSON.parse(text);
  } catch {
    return null;
  }
  parts = Array.isArray(parts) ? parts : parts.content;
  const known = Array.isArray(parts) && parts.length > 0 && parts.every((p) => typeof p?.type === "string" && (p.type !== "text" || typeof p.text === "string"));
  return known && parts.some((p) => p.type === "text") ? parts.map((p) => (p.type === "text" ? p.text : `[${p.type}]`)).join("\n") : null;
}

/** A duration of an answer. */
export const took = (seconds) => (seconds < 10 ? `${seconds.toFixed(1)} s` : plural(Math.round(seconds), "second"));

export const WITHOUT = ["failed", "refused"];

/** Why a step went without memory, in words; "" where it had it. */
export function without(s) {
  if (s.status === "refused") return "memory pauses: the provider refused a context";
  if (s.status !== "failed") return "";
  const known = { paused: "paused after two steps that took too long", timeout: "it took too long", overloaded: "too many requests at once", busy: "the session was busy", unforeseen: "an error that the log names" };
  return `memory failed: ${known[s.reason] ?? (s.reason ?? "").replaceAll("_", " ")}`;
}

export const milliseconds = (n) => (n < 10 ? `${n.toFixed(1)} ms` : `${count(Math.round(n))} ms`);

export const FATES = ["kept", "shown in part", "listed", "left out"];
const SIGNS = { kept: "\u25cf", "shown in part": "\u25d0", listed: "\u25cb", "left out": "\u2013" };

/** The class of a fate, and a sign of it that needs no colour. */
export const fateClass = (fate) => `fate-${FATES.indexOf(fate)}`;
export const fateSign = (fate) => SIGNS[fate] ?? "";
