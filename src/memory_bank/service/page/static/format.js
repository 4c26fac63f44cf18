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
  return share < 0 ? `${-share}% more` : "all of it";
}

/** The word between what was sent and the full history. */
export const beside = (sent, full) => (sent > full ? "instead of" : "of");

/** A length in bytes, in few characters. */
export const bytes = (n) => (n < 1000 ? `${n} B` : `${short(n).replace(/[kMG]$/, " $&")}B`);

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");

export const moment = (seconds) => new Date(1000 * seconds).toLocaleString("en-GB");

/** How long ago, in one unit. */
export function ago(seconds) {
  if (!seconds) return "";
  const gone = Math.max(0, Date.now() / 1000 - seconds);
  for (const [unit, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (gone >= unit) return `${Math.floor(gone / unit)} ${name} ago`;
  }
  return "now";
}

export const money = (n) => (n ? n.toFixed(n < 1 ? 4 : 2) : "0");

/** A sum of money by the configured prices, in dollars. */
export const dollars = (n) => `$${money(n)}`;

/** What calls cost, beside what the full history would have; how to set a price where there is none. */
export function costs(c) {
  if (c.sent !== null) {
    const rest = c.unpriced.length ? `; without ${c.unpriced.join(", ")}, which have no price` : "";
    return `${dollars(c.sent)} instead of ${dollars(c.full)}, ${c.compared}${rest}`;
  }
  if (!c.models.length) return "no usage reported yet";
  const [sent, full] = ["sent", "full"].map((kind) => c.models.reduce((sum, m) => sum + m[kind].input, 0));
  return `${short(sent)} of ${short(full)} input tokens; for dollars, set prices."${c.unpriced[0]}" in the configuration`;
}

export const milliseconds = (n) => (n < 10 ? `${n.toFixed(1)} ms` : `${count(Math.round(n))} ms`);

export const FATES = ["kept", "shown in part", "listed", "left out"];
const SIGNS = { kept: "\u25cf", "shown in part": "\u25d0", listed: "\u25cb", "left out": "\u2013" };

/** The class of a fate, and a sign of it that needs no colour. */
export const fateClass = (fate) => `fate-${FATES.indexOf(fate)}`;
export const fateSign = (fate) => SIGNS[fate] ?? "";
