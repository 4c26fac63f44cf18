// The page put together: what the address says is shown, what is new is asked for, the key is kept.

import { Failure, Poll, get, key } from "./api.js";
import { Compare } from "./compare.js";
import { el, plainText, put } from "./dom.js";
import { count, less, plural, saved, short } from "./format.js";
import { Home } from "./home.js";
import { RecordView } from "./record.js";
import { go, link, read, wrong } from "./route.js";
import { SessionView } from "./session.js";
import { Sessions } from "./sessions.js";
import { StepView, forgetSteps } from "./step.js";

const box = (id) => document.getElementById(id);
const sessions = new Sessions(box("sessions"));
const home = new Home();
let compared = null; // a Compare
let session = null; // the SessionView
let detail = null; // a StepView or a RecordView
let route = read();

// -- what the address says

function show() {
  const before = route;
  route = read();
  if (route.wrong) {
    route = before;
    findWrong(read().wrong);
    return;
  }
  const other = route.session !== (session?.name ?? null) || String(route.compared) !== String(before.compared);
  if (other) openSession();
  sessions.choose(route.session);
  const panel = route.detail ? "detail" : route.session ? "session" : route.compared || route.home ? "home" : "sessions";
  const moved = document.body.dataset.panel !== panel;
  document.body.dataset.panel = panel;
  if (session) {
    const tab = route.tab ?? session.tabs.shown ?? (route.detail?.kind === "record" ? "records" : "steps");
    session.show(tab, route.asked);
    showDetail();
  }
  document.title = title();
  if ((moved || other) && narrow()) box("columns").scrollTop = 0;
  if (moved && narrow() && before !== route) box(`${panel}-title`)?.focus();
}

/** Go to the latest step that went wrong in the way that is asked for. */
async function findWrong(asked) {
  const found = (path, more) => get(path, { ...more, limit: 1 }).catch(() => ({ steps: [], sessions: [] }));
  if (asked.only === "lost" && asked.session) go(link(asked.session), true);
  else if (asked.only === "lost") {
    const [s] = (await found("v1/sessions", { sort: "lost", since: asked.since })).sessions;
    go(s ? link(s.name) : "#/", true);
  } else {
    const [at] = (await found("v1/stats/wrong", asked)).steps;
    go(at ? link(at.session, "steps", at.step.number) : "#/", true);
  }
}

function openSession() {
  session?.close();
  compared?.stop();
  home.stop();
  closeDetail();
  session = compared = null;
  if (!route.session) {
    compared = route.compared && new Compare(route.compared);
    put(box("session"), (compared ?? home).element);
    if (!compared) home.start();
    return;
  }
  session = new SessionView(box("session"), route.session, {
    stepped: (last) => {
      if (!last || (detail instanceof StepView && detail.last > last)) forgetSteps();
      if (detail instanceof StepView) detail.grown(last);
      showDetail();
    },
    gone: (message) => {
      session?.close();
      closeDetail();
      put(box("session"), el("h1", { id: "session-title", tabindex: "-1" }, "Not there"), el("p", { class: "note", role: "status" }, message), el("p", {}, el("a", { href: "#/" }, "All sessions")));
    },
  });
  session.start();
}

/** The step or the record of the address; without one the latest step, which goes on with the session. */
function showDetail() {
  const wanted = route.detail ?? (session.last && detailShown() && !(detail && route.tab !== "steps") ? { kind: "step", number: session.last, view: "context" } : null);
  if (!wanted) {
    if (!detail) session.choose(session.last, true);
    return;
  }
  const kind = wanted.kind === "step" ? StepView : RecordView;
  if (!(detail instanceof kind)) {
    closeDetail();
    detail = wanted.kind === "step" ? new StepView(box("detail"), session.name, session.last) : new RecordView(box("detail"), session.name, () => link(session.name), (number) => session.chooseRecord(number));
  }
  if (wanted.kind === "step") {
    session.chooseRecord(null);
    session.choose(wanted.number);
    detail.show(wanted.number, wanted.view, route.asked, !route.detail);
  } else detail.show(wanted.id, route.asked.get("find"));
}

function closeDetail() {
  detail?.close();
  detail = null;
  put(box("detail"));
}

const narrow = () => getComputedStyle(box("columns")).getPropertyValue("--narrow").trim() === "1";
const detailShown = () => box("detail").offsetParent !== null;

function title() {
  const parts = ["memory bank"];
  if (route.compared) parts.unshift("two sessions");
  if (route.session) parts.unshift(plainText(route.session));
  if (route.detail?.kind === "step") parts.unshift(`step ${route.detail.number}`);
  if (route.detail?.kind === "record") parts.unshift("record");
  return parts.join(" \u00b7 ");
}

// -- the whole service, the connection

const stats = new Poll(10_000, async () => {
  const s = await get("v1/stats");
  const without = Object.values(s.without_memory).reduce((sum, n) => sum + n, 0);
  const { figure, word } = saved(s.tokens.sent, s.tokens.full, s.cost.sent, s.cost.full);
  const facts = [
    ["sessions", count(s.sessions)],
    ["tokens", s.tokens.full ? `${short(s.tokens.sent)} sent, ${s.tokens.sent > s.tokens.full ? s.tokens.compared : less(s.tokens.sent, s.tokens.full)}` : "none sent"],
    ...(s.cost.sent === null ? [] : [[word === "saved" ? "saved in all" : "cost more in all", figure]]),
    ...(without ? [["without memory", el("a", { class: "bad", href: wrong({ only: "without_memory" }) }, plural(without, "request"))]] : []),
    ...(s.queue.open && s.queue.model ? [["summaries waiting", count(s.queue.open) + (s.queue.failing ? `, ${count(s.queue.failing)} failing` : "")]] : []),
  ];
  put(box("stats"), facts.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v))));
  home.show(s);
  sessions.offer(s.cost.models.map((m) => m.model));
});

function connection() {
  const state = document.hidden ? "paused" : Poll.failing.size ? "lost" : "live";
  box("live").className = state;
  put(box("live"), { live: "live", paused: "paused", lost: "no answer, trying again" }[state]);
}

// -- the key

function askForKey() {
  if (!box("key").hidden) return;
  put(box("key-told"), key.get() ? "The key that was given is not accepted (any more): give another one." : box("key-told").textContent);
  box("key").hidden = false;
  box("key-field").value = "";
  box("key-field").focus();
}

box("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  key.set(box("key-field").value.trim());
  box("key").hidden = true;
  box("forget-key").hidden = false;
  try {
    await get("v1/stats");
    for (const poll of Poll.all) poll.now();
    session ? showDetail() : box("find-session").focus();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
  }
});

box("forget-key").addEventListener("click", () => {
  key.forget();
  location.reload();
});

// -- beginning

for (const skip of document.querySelectorAll(".skip")) {
  skip.addEventListener("click", () => (box(skip.dataset.to) ?? box("session-title"))?.focus());
}
document.addEventListener("key-wanted", askForKey);
document.addEventListener("connection", connection);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || !box("key").hidden || event.target.value) return;
  const here = read(); // the route may be one key behind
  if (here.detail) go(link(here.session));
  else if (here.session || here.compared || here.home) go("#/");
});
window.addEventListener("hashchange", show);
box("forget-key").hidden = !key.get();
connection();
openSession();
sessions.start();
stats.start();
show();
