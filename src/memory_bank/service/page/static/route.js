// What the page shows is in its address, after the #: links lead anywhere, the back button leads back.

import { encoded } from "./api.js";

/** `#/s/NAME/steps/12/past?find=…` as parts. */
export function read(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decoded);
  const asked = new URLSearchParams(query);
  const none = { session: null, tab: null, detail: null, asked, compared: null, home: parts[0] === "overview" };
  if (parts[0] === "compare" && parts[1]) return { ...none, compared: parts.slice(1, 3) };
  if (parts[0] === "wrong") return { ...none, wrong: Object.fromEntries(asked) };
  if (parts[0] !== "s" || !parts[1]) return none;
  const [, session, kind, id, view] = parts;
  if (kind === "steps" && /^\d+$/.test(id ?? "")) {
    return { session, tab: null, detail: { kind: "step", number: Number(id), view: view ?? "context" }, asked };
  }
  if (kind === "records" && id) return { session, tab: null, detail: { kind: "record", id }, asked };
  return { session, tab: ["records", "search"].includes(kind) ? kind : "steps", detail: null, asked };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of something in a session. */
export function link(session, ...parts) {
  const last = parts.at(-1);
  const asked = last && typeof last === "object" ? parts.pop() : {};
  const query = new URLSearchParams(Object.entries(asked).filter(([, v]) => v));
  return `#/${["s", session, ...parts].map(encoded).join("/")}${query.size ? `?${query}` : ""}`;
}

/**
 * The address of the latest step that went wrong: `only` such, of a `session`, `since` and `until` a time; for `lost` of
 * the session that cost most above what it would have without memory.
 */
export const wrong = (asked) => `#/wrong?${new URLSearchParams(Object.entries(asked).filter(([, v]) => v))}`;

/** The address of two sessions side by side. */
export const beside = (...names) => `#/${["compare", ...names].map(encoded).join("/")}`;

/** Go somewhere; `quietly`: in place of where one is, so that the back button skips it. */
export function go(to, quietly = false) {
  if (to === location.hash) return;
  if (!quietly) {
    location.hash = to;
    return;
  }
  history.replaceState(null, "", to);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}
