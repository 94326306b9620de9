// The state of the cluster at a glance.

import { chart } from "./charts.js";
import { ask, choice, fill, h, href, panel, setText } from "./dom.js";
import { age, bytes, clock, count, counted, glyph, percent, short, span, stateClass, stateName } from "./format.js";
import { advice as finding, noTasks, noWorkers, nothing } from "./notices.js";
import { addedPanels } from "./panels.js";

const NOW = ["running", "ready", "waiting", "suspended", "assigned"];
const NOTES = 12;
const AGAIN_MS = 10_000;
const NOTES_MS = 2_000;

export function overview(store) {
  const figures = {};
  const tiles = h("dl", { class: "tiles" }, [
    tile("rate", "Tasks per second", "tasks"),
    tile("running", "Running", "tasks", { state: "running" }),
    tile("queued", "Queued", "tasks"),
    tile("done", "Done", "tasks", { state: "done" }),
    tile("failed", "Failed", "failures"),
    tile("workers", "Workers", "workers"),
    tile("scheduler", "Scheduler"),
    tile("storage", "Objects stored"),
  ]);

  function tile(name, title, path = null, query = {}) {
    figures[name] = { value: h("span", { class: "value" }, "–"), note: h("span", { class: "note" }) };
    const label = path ? h("a", { href: href([path], query) }, title) : title;
    return h("div", { class: `tile tile-${name}` }, h("dt", {}, label), h("dd", {}, figures[name].value, figures[name].note));
  }

  function tell(name, value, note = "") {
    setText(figures[name].value, value);
    setText(figures[name].note, note);
  }

  const bar = h("div", { class: "bar", "aria-hidden": "true" }, NOW.map((state) => h("span", { class: `part part-${state}` })));
  const nowList = h("ul", { class: "counts" });
  const endedList = h("ul", { class: "counts" });
  const emptyTasks = h("div", { class: "empty", hidden: true });
  const emptyWorkers = h("section", { class: "panel empty", hidden: true, "aria-label": "Why there are no workers" });
  const states = panel("Tasks by state", { class: "states" }, bar, h("h3", {}, "Now"), nowList, h("h3", {}, "Ended since the scheduler started"), endedList, emptyTasks);

  let absence = null;
  let range = 300;
  let day = null;
  let dayAt = -Infinity;
  const asking = new AbortController();
  const charts = [
    chart("Throughput", [{ name: "tasks_per_second", title: "tasks/s", colour: "blue", fill: true }, { name: "failed_per_second", title: "failed/s", colour: "bad", dash: true }], short),
    chart("Tasks in the system", [{ name: "queued", title: "queued", colour: "amber", fill: true }, { name: "running", title: "running", colour: "blue", dash: true }], short),
    chart("Workers", [{ name: "slots", title: "slots", colour: "violet", dash: true }, { name: "workers", title: "workers", colour: "teal", fill: true }], short),
    chart("Memory of the scheduler and listed workers", [{ name: "memory_bytes", title: "memory", colour: "violet", fill: true }], bytes),
  ];
  const ranges = choice("Time shown", [[300, "5 min"], [1800, "30 min"], [86_400, "24 h"]], range, (value) => { range = value; dayAt = -Infinity; update(["all"]); });

  const advice = h("ol", { class: "notes" });
  const advicePanel = panel("What to change", { hidden: true }, advice);
  let adviceAt = -Infinity;
  let notesAt = -Infinity;
  const added = addedPanels(store, "overview");
  const decisions = h("ol", { class: "notes" });
  const incidents = h("ol", { class: "notes" });
  const messages = h("div", { class: "messages" });
  const element = h("div", { class: "page overview" },
    h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Overview"), ranges),
    emptyWorkers, tiles, added.elements, advicePanel,
    h("div", { class: "grid charts" }, charts.map((each) => each.element)),
    h("div", { class: "grid thirds" }, states, panel("Last scaling decisions", {}, decisions), panel("Incidents", {}, incidents)),
    h("details", { class: "panel" }, h("summary", {}, "Scheduler messages by kind"), messages));

  function update(what) {
    const all = what.includes("all");
    const has = (name) => all || what.includes(name);
    if (has("status") && store.status) drawStatus(store.status);
    added.update(what);
    if (all || (has("series") && range < 86_400)) drawSeries();
    if (range >= 86_400) void drawDay();
    if (has("status")) void drawAdvice();
    if (all || what.includes("clock")) void drawNotes();
  }

  function drawStatus(status) {
    const { tasks, totals, scheduler, storage } = status;
    tell("rate", short(status.tasks_per_second), status.failed_per_second > 0 ? `${short(status.failed_per_second)} failed/s` : "");
    tell("running", count(tasks.running), totals.slots ? `of ${counted(totals.slots, "slot")}` : "");
    tell("queued", count(tasks.queued), tasks.waiting ? `${count(tasks.waiting)} waiting for inputs` : "");
    tell("done", count(tasks.ended.done ?? 0), tasks.ended.cancelled ? `${count(tasks.ended.cancelled)} cancelled` : "");
    tell("failed", count(tasks.failed_total));
    figures.failed.value.classList.toggle("bad", tasks.failed_total > 0);
    const trouble = [[totals.disconnected, "out of contact"], [totals.draining, "draining"]].filter(([number]) => number > 0);
    tell("workers", count(totals.workers), trouble.map(([number, text]) => `${count(number)} ${text}`).join(", ") || counted(totals.slots, "slot"));
    tell("scheduler", percent(scheduler.cpu_percent), `${bytes(scheduler.rss_bytes)}, up ${span(scheduler.uptime_seconds)}, longest step ${span(scheduler.step_seconds_max)}${scheduler.journal_bytes ? `, journal ${bytes(scheduler.journal_bytes)}` : ""}`);
    tell("storage", bytes(storage.bytes), `${counted(storage.objects, "object")}${storage.limit_bytes ? `, ${percent(100 * storage.bytes / storage.limit_bytes)} of ${bytes(storage.limit_bytes)}` : ""}${storage.spilled_bytes ? `, ${bytes(storage.spilled_bytes)} spilled` : ""}${storage.state_bytes ? `, ${bytes(storage.state_bytes)} in state_directory` : ""}`);
    drawStates(tasks);
    drawMessages(status);
    if (status.without_workers !== absence) fill(emptyWorkers, noWorkers(store));
    absence = status.without_workers;
    emptyWorkers.hidden = totals.workers > 0;
  }

  function drawStates(tasks) {
    // Running and suspended tasks are also assigned to a worker. Count each task once.
    const now = { ...tasks, assigned: Math.max(0, tasks.assigned - tasks.running - tasks.suspended) };
    const total = NOW.reduce((sum, state) => sum + now[state], 0);
    NOW.forEach((state, place) => { bar.children[place].style.flexGrow = total ? String(now[state] / total) : "0"; });
    bar.hidden = total === 0;
    const labels = { assigned: "sent to a worker", ready: "ready to run", waiting: "waiting for inputs" };
    fill(nowList, NOW.map((state) => countLine(h("i", { class: `swatch part-${state}`, "aria-hidden": "true" }), labels[state] ?? state, now[state])));
    const ended = Object.entries(tasks.ended).filter(([, number]) => number > 0).sort((left, right) => right[1] - left[1]);
    fill(endedList, ended.map(([state, number]) => countLine(
      h("i", { class: `mark ${stateClass(state)}`, "aria-hidden": "true" }, glyph(state)), h("a", { href: href(["tasks"], { state }) }, stateName(state)), number)));
    const none = total === 0 && ended.length === 0;
    if (none && emptyTasks.hidden) fill(emptyTasks, noTasks(store));
    emptyTasks.hidden = !none;
  }

  const countLine = (mark, label, number) => h("li", {}, mark, h("span", {}, label), h("b", {}, count(number)));

  function drawMessages(status) {
    const kinds = [...new Set([...Object.keys(status.received), ...Object.keys(status.sent)])].sort();
    fill(messages, kinds.length === 0 ? h("p", { class: "muted" }, "None yet.") : h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Kind"), h("th", { scope: "col", class: "number" }, "Received"), h("th", { scope: "col", class: "number" }, "Sent"))),
      h("tbody", {}, kinds.map((kind) => h("tr", {}, h("th", { scope: "row" }, kind),
        h("td", { class: "number" }, count(status.received[kind] ?? 0)), h("td", { class: "number" }, count(status.sent[kind] ?? 0)))))));
  }

  function drawSeries() {
    if (range >= 86_400) return;
    for (const each of charts) each.last(store.series, range, store.now());
  }

  async function drawDay() {
    if (performance.now() - dayAt < AGAIN_MS) return;
    dayAt = performance.now();
    try {
      day = await ask("api/series?since=0", asking.signal);
    } catch {
      return;  // the page already shows the connection state; the next interval retries
    }
    if (range >= 86_400) for (const each of charts) each.last(day, range, store.now());
  }

  async function drawAdvice() {
    if (performance.now() - adviceAt < AGAIN_MS) return;
    adviceAt = performance.now();
    try {
      const { findings } = await ask("api/findings", asking.signal);
      advicePanel.hidden = findings.length === 0;
      fill(advice, findings.map(finding));
    } catch {
      // the page already shows the connection state; the next interval retries
    }
  }

  async function drawNotes() {
    if (performance.now() - notesAt < NOTES_MS) return;
    notesAt = performance.now();
    try {
      const [decided, happened] = await Promise.all(["decisions", "incidents"].map((name) => ask(`api/${name}?limit=${NOTES}`, asking.signal)));
      fillNotes(decisions, decided.decisions, decisionLine, "None yet", "Decisions appear when a manager must start or stop workers.");
      fillNotes(incidents, happened.incidents, incidentLine, "No incidents", "Lost workers, retried tasks, and similar events appear here.");
    } catch {
      // the page already shows the connection state; the next interval retries
    }
  }

  function fillNotes(list, notes, line, title, text) {
    fill(list, notes.length === 0 ? h("li", { class: "empty" }, nothing(title, text)) : notes.map(line));
  }

  function decisionLine(each) {
    const units = `${counted(each.units, "unit")}${each.draining ? `, ${count(each.draining)} draining` : ""}`;
    return h("li", {}, h("time", { title: `${age(store.now() - each.at)} ago` }, clock(each.at)), h("span", {}, h("b", {}, each.manager || "–"), ` → ${units}`), h("span", { class: "reason" }, each.reason));
  }

  function incidentLine(each) {
    return h("li", {}, h("time", { title: `${age(store.now() - each.at)} ago` }, clock(each.at)), h("span", {}, h("b", {}, stateName(each.kind)), ` ${each.subject}`), h("span", { class: "reason" }, each.text));
  }

  return { title: "Overview", element, update, close() { asking.abort(); added.close(); for (const each of charts) each.close(); } };
}
