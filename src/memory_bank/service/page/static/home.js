// Without a session: what memory saved and cost in all, day by day and model by model, and how to point an agent here.

import { Failure, Poll, get } from "./api.js";
import { HEIGHT, axis } from "./curve.js";
import { copier, el, put, svg, told } from "./dom.js";
import { ago, beside, count, dollars, less, money, plural, saved, short, untold } from "./format.js";
import { link } from "./route.js";

const DAYS = 30;
const TOP = 8;

export class Home {
  constructor() {
    this.unit = "tokens";
    this.title = el("h1", { id: "session-title", tabindex: "-1" }, "What memory saved");
    this.tiles = el("div", { class: "tiles" });
    this.chart = el("div", { class: "days" });
    this.top = el("div", {});
    this.models = el("div", {});
    this.clients = el("section", { class: "clients", "aria-label": "Point an agent here" });
    this.figures = el("div", {}, this.tiles, this.chart, this.top, this.models);
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
    const [{ days }, { sessions }] = await Promise.all([get("v1/stats/days", { days: DAYS }), get("v1/sessions", { sort: "saved", limit: TOP })]);
    this.days = days;
    this.drawDays();
    this.drawTop(sessions.filter((s) => s.tokens.steps));
  }

  /** The totals of all sessions. */
  show(s) {
    const begun = s.sessions > 0;
    this.figures.hidden = !begun;
    put(this.title, begun ? "What memory saved" : "No session yet");
    if (begun !== this.begun) this.drawClients(begun);
    this.begun = begun;
    const { figure, word, loses, paid, would } = saved(s.tokens.sent, s.tokens.full, s.cost.sent, s.cost.full);
    const tile = (name, big, small, kind = "") => el("p", { class: kind }, el("span", { class: "dim" }, name), el("b", {}, big), el("span", { class: "dim" }, small));
    const share = less(...(s.cost.sent === null ? [s.tokens.sent, s.tokens.full] : [s.cost.sent, s.cost.full]));
    const failures = Object.entries(s.without_memory).map(([why, n]) => `${why.replaceAll("_", " ")} ${count(n)}`);
    put(
      this.tiles,
      tile(loses ? "Cost more than without memory" : "Saved", figure, s.tokens.full ? `paid ${paid}, without memory ${would}: ${share}` : "nothing sent yet", loses ? "loss" : "gain"),
      tile("Tokens sent", short(s.tokens.sent), `${beside(s.tokens.sent, s.tokens.full)} ${short(s.tokens.full)}: ${less(s.tokens.sent, s.tokens.full)}`),
      tile("Summaries", dollars(s.spend.cost), `${plural(s.spend.calls, "call")} of a model, ${s.queue.open ? `${count(s.queue.open)} waiting` : "none waiting"}${s.queue.failing ? `, ${count(s.queue.failing)} failing` : ""}`),
      tile("Provider errors", count(s.errors), `in ${plural(s.tokens.steps, "step")}`, s.errors ? "bad" : ""),
      tile("Steps without memory", count(s.steps_without_memory), failures.length ? `since the start: ${failures.join(", ")}` : "memory failed or was paused", s.steps_without_memory ? "bad" : ""),
    );
    this.drawModels(s.cost);
  }

  // -- day by day

  drawDays() {
    const priced = this.days.filter((d) => d.sent_cost !== null);
    const unit = this.unit === "dollars" && priced.length ? "dollars" : "tokens";
    const [of, figure] = unit === "dollars" ? [(d) => [d.full_cost ?? 0, d.sent_cost ?? 0], dollars] : [(d) => [d.tokens.full, d.tokens.sent], short];
    const known = new Map(this.days.map((d) => [d.day, d]));
    const today = Date.now();
    const all = Array.from({ length: DAYS }, (_, i) => new Date(today - 86_400_000 * (DAYS - 1 - i)).toISOString().slice(0, 10));
    this.width = this.chart.clientWidth;
    const width = Math.max(280, this.width);
    const most = Math.max(...this.days.flatMap(of), unit === "dollars" ? 0.01 : 1);
    const { parts, y, left, right } = axis(most, width, figure);
    const room = (width - left - right) / DAYS;
    all.forEach((day, i) => {
      const x = left + room * i;
      if (i % 7 === (DAYS - 1) % 7) parts.push(svg("text", { x: x + room / 2, y: HEIGHT - 4, "text-anchor": i === DAYS - 1 ? "end" : "middle" }, day.slice(5)));
      if (!known.has(day)) return;
      const d = known.get(day);
      const bars = of(d).map((n, kind) => svg("rect", { class: ["full", "sent"][kind], x: x + room * (kind ? 0.3 : 0.12), width: room * (kind ? 0.4 : 0.76), y: y(n), height: Math.max(1, y(0) - y(n)), rx: 1.5 }));
      const title = svg("title", {}, `${day}: ${figure(of(d)[1])} instead of ${figure(of(d)[0])}${d.errors ? `, ${plural(d.errors, "error")}` : ""}`);
      parts.push(svg("g", {}, title, bars, d.errors || d.without_memory ? svg("circle", { class: "bad", cx: x + room / 2, cy: y(of(d)[0]) - 6, r: 3 }) : ""));
    });
    const toggle = ["tokens", "dollars"].map((kind) => el("button", { type: "button", class: "small", "aria-pressed": String(kind === unit), disabled: kind === "dollars" && !priced.length, onclick: () => this.measure(kind) }, kind));
    const rows = this.days.map((d) => el("tr", {}, [d.day, count(d.tokens.steps), short(d.tokens.full), short(d.tokens.sent), d.sent_cost === null ? "" : dollars(d.full_cost), d.sent_cost === null ? "" : dollars(d.sent_cost), d.errors || ""].map((c) => el("td", {}, c))));
    put(
      this.chart,
      el("div", { class: "bar title" }, el("h2", {}, `The last ${DAYS} days`), el("span", { class: "turn" }, toggle)),
      el("p", { class: "legend" }, el("span", { class: "key full" }, "without memory"), el("span", { class: "key sent" }, unit === "dollars" ? "paid" : "sent"), el("span", { class: "key bad" }, "errors, or steps without memory")),
      svg("svg", { class: "curve", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${unit} of the last ${DAYS} days; the table below has the figures` }, parts),
      el("details", { class: "table", open: this.chart.querySelector("details")?.open }, el("summary", {}, "The days as a table (UTC)"), el("div", { class: "scrolls" }, table(["Day", "Steps", "Full history", "Sent", "Without memory", "Paid", "Errors"], rows))),
    );
  }

  measure(unit) {
    this.unit = unit;
    this.drawDays();
  }

  // -- where

  drawTop(sessions) {
    const rows = sessions.map((s) => {
      const { figure, loses } = saved(s.tokens.sent, s.tokens.full, s.sent_cost, s.full_cost);
      return el(
        "tr", {},
        el("td", { class: "text" }, el("a", { href: link(s.name) }, told(s.title ?? s.name))),
        [count(s.tokens.steps), less(s.tokens.sent, s.tokens.full), el("span", { class: loses ? "worse" : "" }, loses ? `\u2212${figure}` : figure), s.sent_cost === null ? "" : dollars(s.sent_cost), s.models[0] ? told(s.models[0]) : "", s.errors + s.without_memory || "", ago(s.last_used)].map((c) => el("td", {}, c)),
      );
    });
    put(this.top, sessions.length ? [el("h2", {}, "Sessions that saved most"), el("div", { class: "wide" }, table(["Session", "Steps", "Tokens", "Saved", "Paid", "Model", "Errors", "Last use"], rows))] : "");
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

/** A table with these headings. */
export function table(heads, rows) {
  return el("table", {}, el("thead", {}, el("tr", {}, heads.map((h) => el("th", { scope: "col" }, h)))), el("tbody", {}, rows));
}
