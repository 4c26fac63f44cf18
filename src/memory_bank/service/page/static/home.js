// Without a session: what memory saved today and before, what went wrong, which sessions saved most; how to begin.

import { Poll, get } from "./api.js";
import { HEIGHT, axis } from "./curve.js";
import { copier, drawn, el, plainText, put, svg, told } from "./dom.js";
import { ago, beside, count, day, dollars, less, moment, plural, saved, short, titled, untold, without } from "./format.js";
import { link, wrong } from "./route.js";

const DAYS = 30;
const HOURS = 72;
const TOP = 8;
const LATEST = 4;
const HOUR = 3600;

export class Home {
  constructor() {
    this.unit = "dollars";
    this.by = "session";
    this.title = el("h1", { id: "session-title", tabindex: "-1" }, "What memory saved today");
    this.tiles = el("div", { class: "tiles today" });
    this.dearer = el("p", { class: "figures" });
    this.failures = el("div", {});
    this.chart = el("div", { class: "days" });
    this.top = el("div", {});
    this.all = el("div", { class: "tiles" });
    this.models = el("div", {});
    this.clients = el("section", { class: "clients", "aria-label": "Point an agent here" });
    this.figures = el("div", {}, this.tiles, this.dearer, this.failures, this.chart, this.top, el("h2", {}, "Since the beginning"), this.all, this.models);
    this.element = el("div", { class: "home-page" }, el("a", { class: "up", href: "#/" }, "All sessions"), this.title, this.figures, this.clients);
    this.poll = new Poll(15_000, () => this.ask());
    this.watcher = new ResizeObserver(() => this.days && this.chart.clientWidth !== this.width && this.drawDays());
    this.watcher.observe(this.chart);
    this.drawClients(false);
  }

  start() {
    this.poll.start();
  }

  stop() {
    this.poll.stop();
  }

  async ask() {
    const now = new Date();
    const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime() / 1000;
    const offset = 0 - now.getTimezoneOffset();
    const [{ days }, { sessions: lost }, { steps }] = await Promise.all([
      get("v1/stats/days", { days: DAYS, offset }), get("v1/sessions", { sort: "lost", since: midnight, limit: TOP }), get("v1/stats/wrong", { limit: LATEST }),
    ]);
    this.days = days;
    this.spans = days;
    const young = days.length && days[0].start > midnight - 2.5 * 24 * HOUR;
    if (young) this.spans = (await get("v1/stats/days", { days: 4, unit: "hour", offset })).days.filter((h) => h.start > now / 1000 - HOURS * HOUR);
    this.young = young;
    this.drawToday(midnight, lost.filter((s) => s.sent_cost > s.full_cost));
    this.drawWrong(steps);
    const sign = JSON.stringify([this.spans, moment(now / 1000).slice(0, 13)]);
    if (sign !== this.sign) this.drawDays();
    this.sign = sign;
    await this.drawTop();
  }

  // -- today

  drawToday(midnight, dearer) {
    const d = this.days.find((one) => one.day === day(Date.now() / 1000));
    drawn(this.tiles, [d ?? null, midnight], () => d ? tiles(d, { since: midnight }) : el("p", {}, el("span", { class: "dim" }, "Today"), el("b", {}, "nothing sent yet"), el("span", { class: "dim" }, this.days.length ? `the last step was on ${this.days.at(-1).day}` : "")));
    const each = dearer.map((s, i) => [i ? ", " : "", el("a", { class: "bad", href: link(s.name) }, told(s.title ?? s.name), ` +${dollars(s.sent_cost - s.full_cost)}`)]);
    drawn(this.dearer, dearer, () => each.length ? ["Dearer today than without memory: ", each] : "");
    this.dearer.hidden = !each.length;
  }

  drawWrong(steps) {
    const rows = steps.map(({ session, title, step: s }) => {
      const what = s.error === null ? `without memory: ${without(s).replace(/^memory failed: /, "")}` : `${s.http_status >= 400 ? `error ${s.http_status}: ` : "error: "}${s.error}`;
      return el("li", {}, el("a", { class: "bad", href: link(session, "steps", s.number) }, plainText(what).slice(0, 160)), el("p", { class: "dim" }, told(title ?? session), ` \u00b7 step ${count(s.number)} \u00b7 ${moment(s.created)}`, s.model ? [" \u00b7 ", told(s.model)] : ""));
    });
    drawn(this.failures, steps, () => rows.length ? [el("h2", {}, "What went wrong, the latest first"), el("ul", { class: "lines-to-copy wrong", "aria-label": "What went wrong" }, rows)] : "");
  }

  /** The totals of all sessions. */
  show(s) {
    const begun = s.sessions > 0;
    this.figures.hidden = !begun;
    put(this.title, begun ? "What memory saved today" : "No session yet");
    if (begun !== this.begun) this.drawClients(begun);
    this.begun = begun;
    const reasons = Object.entries(s.without_memory).map(([why, n]) => `${why.replaceAll("_", " ")} ${count(n)}`);
    const waiting = s.queue.open ? `${count(s.queue.open)} waiting${s.queue.model ? "" : " for a model that this service does not ask"}` : "none waiting";
    const sums = { tokens: s.tokens, sent_cost: s.cost.sent, full_cost: s.cost.full, errors: s.errors, without_memory: s.steps_without_memory };
    drawn(this.all, [sums, s.queue, reasons, s.holdout], () => [
      tiles(sums, {}, reasons.length ? `since the start: ${reasons.join(", ")}` : ""),
      s.holdout ? tile("Measured by holdout", s.holdout.per_session ? `${less(s.holdout.per_session.share, 1)} a session` : s.holdout.control < 30 || s.holdout.memory < 30 ? "too few sessions" : "nothing to compare", s.holdout.compared) : "",
      tile("Summaries", plural(s.queue.calls, "call"), `of a model, ${waiting}${s.queue.failing ? `, ${count(s.queue.failing)} failing` : ""}`),
    ]);
    this.drawModels(s.cost);
  }

  // -- day by day, or hour by hour

  drawDays() {
    const priced = this.spans.filter((d) => d.sent_cost !== null);
    const unit = this.unit === "dollars" && priced.length ? "dollars" : "tokens";
    const [of, figure] = unit === "dollars" ? [(d) => [d.full_cost ?? 0, d.sent_cost ?? 0], dollars] : [(d) => [d.tokens.full, d.tokens.sent], short];
    const known = new Map(this.spans.map((d) => [d.day, d]));
    const now = Date.now() / 1000;
    const hours = Math.max(12, Math.ceil((now - (this.spans[0]?.start ?? now)) / HOUR) + 1);
    const all = this.young ? Array.from({ length: hours }, (_, i) => `${moment(now - HOUR * (hours - 1 - i)).slice(0, 13)}:00`) : Array.from({ length: DAYS }, (_, i) => day(now - 24 * HOUR * (DAYS - 1 - i)));
    this.width = this.chart.clientWidth;
    const width = Math.max(280, this.width);
    const most = Math.max(...this.spans.flatMap(of), unit === "dollars" ? 0.01 : 1);
    const { parts, y, left, right } = axis(most, width, figure);
    const room = (width - left - right) / all.length;
    const every = this.young ? Math.ceil(all.length / 8) : 7;
    all.forEach((name, i) => {
      const x = left + room * i;
      if (i % every === (all.length - 1) % every) parts.push(svg("text", { x: x + room / 2, y: HEIGHT - 4, "text-anchor": i === all.length - 1 ? "end" : "middle" }, name.slice(this.young ? 11 : 5)));
      const d = known.get(name);
      if (!d) return;
      const bars = of(d).map((n, kind) => svg("rect", { class: ["full", "sent"][kind], x: x + room * (kind ? 0.3 : 0.12), width: room * (kind ? 0.4 : 0.76), y: y(n), height: Math.max(1, y(0) - y(n)), rx: 1.5 }));
      const title = svg("title", {}, `${name}: ${figure(of(d)[1])} instead of ${figure(of(d)[0])}${d.errors ? `, ${plural(d.errors, "error")}` : ""}`);
      const where = wrong({ since: d.start, until: d.start + (this.young ? HOUR : 24 * HOUR) });
      const bad = d.errors || d.without_memory ? svg("a", { href: where, "aria-label": `What went wrong: ${name}` }, svg("circle", { class: "bad", cx: x + room / 2, cy: y(of(d)[0]) - 6, r: 4 })) : "";
      parts.push(svg("g", {}, title, bars, bad));
    });
    const toggle = ["dollars", "tokens"].map((kind) => el("button", { type: "button", class: "small", "aria-pressed": String(kind === unit), disabled: kind === "dollars" && !priced.length, onclick: () => this.measure(kind) }, kind));
    put(
      this.chart,
      el("div", { class: "bar title" }, el("h2", {}, this.young ? `The last ${hours} hours` : `The last ${DAYS} days`), el("span", { class: "turn" }, toggle)),
      el("p", { class: "legend" }, el("span", { class: "key full" }, "without memory"), el("span", { class: "key sent" }, unit === "dollars" ? "paid" : "sent"), el("span", { class: "key bad" }, "errors, or steps without memory")),
      svg("svg", { class: "curve", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "group", "aria-label": `${unit} of these ${this.young ? "hours" : "days"}; the table by day has the figures` }, parts),
    );
  }

  measure(unit) {
    this.unit = unit;
    this.drawDays();
  }

  // -- where

  async choose(by) {
    this.by = by;
    await this.drawTop();
  }

  async drawTop() {
    const by = this.by;
    const asked = { session: ["v1/sessions", { sort: "saved", limit: TOP }], project: ["v1/stats/groups", { by }], client: ["v1/stats/groups", { by }] };
    const got = by === "day" ? { groups: [...this.days].reverse() } : await get(...asked[by]);
    if (by !== this.by) return;
    const rows = got.groups ?? got.sessions.filter((s) => s.tokens.steps);
    const plain = (name) => (by === "project" && name ? name.replace(/@[0-9a-f]{12}$/, "") : name); // without the digest of its place
    const shown = (name) => (rows.filter((s) => plain(s.name) === plain(name)).length === 1 ? plain(name) : name);
    const made = rows.map((s) => {
      const at = { session: { session: s.name }, day: { since: s.start, until: s.start + 24 * HOUR } }[by]; // where a red figure leads
      const red = (n, told, only) => (!n ? told : at ? el("a", { class: "bad", href: wrong({ only, ...at }) }, told) : told);
      const { figure, loses } = saved(s.tokens.sent, s.tokens.full, s.sent_cost, s.full_cost);
      const cells = [
        count(s.tokens.steps), less(s.tokens.sent, s.tokens.full), red(loses, loses ? `\u2212${figure}` : figure, "lost"),
        s.sent_cost === null ? "" : dollars(s.sent_cost), s.full_cost === null ? "" : dollars(s.full_cost),
        ...["errors", "without_memory"].map((only) => red(s[only], s[only] ? count(s[only]) : "", only)),
        ...(by === "day" ? [] : [by === "session" ? (s.models[0] ? told(s.models[0]) : "") : count(s.sessions), ago(s.last_used)]),
      ];
      const name = by === "session" ? named(s, link(s.name)) : by === "day" ? s.day : el("b", { title: s.name ?? "" }, told(shown(s.name) ?? `no ${by} is named`));
      return el("tr", {}, el("td", { class: "text" }, name), cells.map((c) => el("td", {}, c)));
    });
    const chip = (name) => el("button", { type: "button", class: "small", "aria-pressed": String(name === by), onclick: () => this.choose(name) }, `by ${name}`);
    const heads = [by[0].toUpperCase() + by.slice(1), "Steps", "Tokens", "Saved", "Paid", "Without memory", "Provider errors", "Steps without memory", ...(by === "day" ? [] : [by === "session" ? "Model" : "Sessions", "Last use"])];
    drawn(this.top, [by, rows, rows.map((s) => ago(s.last_used))], () => made.length ? [el("div", { class: "bar title" }, el("h2", {}, by === "day" ? "Each day" : `${by[0].toUpperCase() + by.slice(1)}s that saved most`), el("span", { class: "turn" }, ["session", "project", "client", "day"].map(chip))), el("div", { class: "wide" }, table(heads, made))] : "");
  }

  drawModels(cost) {
    const rows = cost.models.map((m) =>
      el(
        "tr", {}, el("td", { class: "text" }, told(m.model)),
        [count(m.calls), short(m.sent.input), short(m.sent.cached), short(m.sent.output), m.sent_cost === null ? "no price" : dollars(m.sent_cost), m.full_cost === null ? "" : dollars(m.full_cost)].map((c) => el("td", {}, c)),
        el("td", { class: "dim" }, m.price ? `${m.price.prompt} / ${m.price.cached ?? m.price.prompt} / ${m.price.completion}` : "", m.price_from ? ` (${m.price_from})` : "add it to [prices] in the configuration"),
      ),
    );
    const hint = "Dollars for a million tokens: read, read from the provider\u2019s cache, written. What would have been paid without memory is an estimate from the provider\u2019s own figures.";
    put(this.models, rows.length ? [el("h2", {}, "Models and prices"), el("div", { class: "wide" }, table(["Model", "Requests", "Tokens in", "From cache", "Tokens out", "Paid", "Without memory", "Price and where it is from"], rows)), el("p", { class: "hint" }, hint, untold(cost))] : untold(cost) ? el("p", { class: "hint" }, `What was paid is not known${untold(cost)}.`) : "");
  }

  // -- how to begin

  drawClients(begun) {
    const list = el(
      "ul", { class: "lines-to-copy" },
      clients().map(([name, line]) => el("li", {}, el("b", {}, name), el("pre", { tabindex: "0", "aria-label": name }, line), copier("Copy", async () => line))),
    );
    const say = el("p", { class: "dim" }, "Start an agent with one of these lines; nothing else changes. Its session appears here with its first step.");
    put(this.clients, begun ? el("details", {}, el("summary", {}, "Point another agent here"), list) : [say, list]);
  }
}

/** One line for each client, which sends its requests here. */
function clients() {
  const root = new URL(".", document.baseURI).href.replace(/\/$/, "");
  const v1 = `${root}/v1`;
  return [
    ["Claude Code", "memory-bank run -- claude"],
    ["Codex", "memory-bank run -- codex"],
    ["opencode", "memory-bank run -- opencode"],
    ["Any program", "memory-bank run -- python my_agent.py"],
    ["OpenAI SDK, Python", `client = OpenAI(base_url="${v1}")`],
    ["OpenAI SDK, Node", `const client = new OpenAI({ baseURL: "${v1}" });`],
    ["Anthropic SDK", `client = Anthropic(base_url="${root}")`],
    ["LangChain", `model = ChatOpenAI(model="gpt-4.1-mini", base_url="${v1}")`],
    ["Vercel AI SDK", `const openai = createOpenAI({ baseURL: "${v1}" });`],
    ["LiteLLM", `litellm.completion(model="openai/gpt-4.1-mini", api_base="${v1}", messages=messages)`],
    ["Anything else", `OPENAI_BASE_URL=${v1} ANTHROPIC_BASE_URL=${root} my-agent`],
  ];
}

const tile = (name, big, small, kind = "", href = null) => el(href ? "a" : "p", { class: `tile ${kind}`, href }, el("span", { class: "dim" }, name), el("b", {}, big), el("span", { class: "dim" }, small));

/** What some steps saved, sent and came to; what went wrong leads to the latest such step. */
function tiles(s, asked, reasons = "") {
  const { figure, loses, paid, would } = saved(s.tokens.sent, s.tokens.full, s.sent_cost, s.full_cost);
  const share = less(...(s.sent_cost === null ? [s.tokens.sent, s.tokens.full] : [s.sent_cost, s.full_cost]));
  const bad = (name, only, small) => tile(name, count(s[only]), small, s[only] ? "bad" : "", s[only] ? wrong({ only, ...asked }) : null);
  return [
    tile(loses ? "Cost more than without memory" : "Saved", figure, s.tokens.full ? `paid ${paid}, without memory ${would}: ${share}` : "nothing sent yet", loses ? "loss" : "gain", loses ? wrong({ only: "lost", ...asked }) : null),
    tile("Tokens sent", short(s.tokens.sent), `${beside(s.tokens.sent, s.tokens.full)} ${short(s.tokens.full)}: ${less(s.tokens.sent, s.tokens.full)}`),
    bad("Provider errors", "errors", `in ${plural(s.tokens.steps, "step")}`),
    bad("Steps without memory", "without_memory", reasons || "memory failed or was paused"),
  ];
}

/** A session's title, or else how its task begins, in bold; its name in grey. */
const named = (s, href) => el("a", { class: "named", href }, el("b", {}, told(titled(s))), " ", el("span", { class: "dim" }, told(s.name, "name")));

/** A table with these headings. */
export function table(heads, rows) {
  return el("table", {}, el("thead", {}, el("tr", {}, heads.map((h) => el("th", { scope: "col" }, h)))), el("tbody", {}, rows));
}
