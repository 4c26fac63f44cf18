// The service's own API: requests of this page, with the key that the user gave, and what is asked again and again.

const STORED = "memory-key";

export class Failure extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The key lives as long as the tab. */
export const key = {
  get: () => sessionStorage.getItem(STORED),
  set: (value) => sessionStorage.setItem(STORED, value),
  forget: () => sessionStorage.removeItem(STORED),
};

/** A path of encoded parts below /v1/sessions. */
export const at = (name, ...rest) => ["v1/sessions", ...[name, ...rest].map(encoded)].join("/");

/** A part of a URL; a lone surrogate has none. */
export const encoded = (text) => encodeURIComponent(String(text).toWellFormed());

/** What the service answers. Throws Failure; asks the page for a key where the service does. */
export async function get(path, asked = {}, signal = undefined) {
  return (await answer(path, asked, signal)).json();
}

/** What the service answers, as a file. Throws Failure. */
export async function save(path, asked, name) {
  const url = URL.createObjectURL(await (await answer(path, asked)).blob());
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}

/** Ask the service to change something. Throws Failure. */
export async function change(method, path, body = undefined) {
  await answer(path, {}, undefined, { method, body: body && JSON.stringify(body) });
}

async function answer(path, asked, signal, how = {}) {
  // no name is . or .., and a browser would ask for another path
  if (path.split("/").some((part) => part === "." || part === "..")) throw new Failure("There is nothing of this name.", 404);
  const query = new URLSearchParams(Object.entries(asked).filter(([, v]) => v !== null && v !== undefined && v !== ""));
  const headers = { ...(how.body ? { "content-type": "application/json" } : {}), ...(key.get() ? { "x-memory-key": key.get() } : {}) };
  let got;
  try {
    got = await fetch(query.size ? `${path}?${query}` : path, { ...how, headers, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The service does not answer.", 0);
  }
  if (got.ok) return got;
  if (got.status === 401) document.dispatchEvent(new CustomEvent("key-wanted"));
  const body = await got.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });
  throw new Failure(body?.error?.message ?? `The service answers ${got.status}.`, got.status);
}

/** What a record's JSON begins with, up to its contents: these may be long, so no more is read. */
export async function beginningOf(path, signal) {
  const stop = new AbortController();
  signal?.addEventListener("abort", () => stop.abort());
  const reader = (await answer(path, {}, stop.signal)).body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    text += decoder.decode(value, { stream: !done });
    const end = text.indexOf(',"raw_input":'); // within a JSON text its quotes would be escaped
    if (end >= 0 || done) {
      stop.abort();
      return JSON.parse(end >= 0 ? `${text.slice(0, end)}}` : text);
    }
  }
}

/** An output as it is stored. */
export async function rawText(path, signal) {
  return (await answer(path, { raw: 1 }, signal)).text();
}

/** Does a work again and again while the page is looked at; later and later while it fails. */
export class Poll {
  static all = new Set();
  static failing = new Set();

  constructor(pause, work) {
    this.pause = pause;
    this.work = work;
    this.wait = pause;
    this.on = false;
    this.running = false;
  }

  start() {
    this.on = true;
    Poll.all.add(this);
    if (!document.hidden) this.now();
    return this;
  }

  stop() {
    this.on = false;
    clearTimeout(this.timer);
    Poll.all.delete(this);
    Poll.tell(this, false);
  }

  async now() {
    clearTimeout(this.timer);
    if (!this.on || this.running) return;
    this.running = true;
    try {
      await this.work();
      this.wait = this.pause;
      Poll.tell(this, false);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.wait = Math.min(30_000, 2 * this.wait);
      Poll.tell(this, error.status === 0 || error.status >= 500);
    } finally {
      this.running = false;
      if (this.on && !document.hidden) this.timer = setTimeout(() => this.now(), this.wait);
    }
  }

  static tell(poll, fails) {
    const before = Poll.failing.size > 0;
    if (fails) Poll.failing.add(poll);
    else Poll.failing.delete(poll);
    if (before !== Poll.failing.size > 0) document.dispatchEvent(new CustomEvent("connection"));
  }
}

document.addEventListener("visibilitychange", () => {
  for (const poll of Poll.all) {
    if (document.hidden) clearTimeout(poll.timer);
    else poll.now();
  }
  document.dispatchEvent(new CustomEvent("connection"));
});
