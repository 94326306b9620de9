// The history: figures over any time, with scheduler runs, decisions, incidents, failures, and functions.

import { chart } from "./charts.js";
import { choice, fill, h, href, panel, setText } from "./dom.js";
import { bytes, count, counted, short } from "./format.js";
import { nothing } from "./notices.js";
import { columnsOf, eventLine, history as ofTime, isDecision, marksOf, moment, momentOf } from "./past.js";
import { columns, table } from "./table.js";

const AGAIN_MS = 30_000;
const POINTS = 1500;  // per answer; there is no newer point before the last one is complete
const NEWEST = 50;
const NAMED = 5;  // clients named in a folded line
const RANGES = [[3600, "1 h"], [21_600, "6 h"], [86_400, "24 h"], [604_800, "7 d"], [2_592_000, "30 d"]];
const DEFAULT_RANGE = 86_400;  // or the available range, if shorter
const FAILURES = columns("failures", { text: { class: "error", show: (row) => ({ text: row.text, title: row.text }) }, function: { class: "name" } });
const TIMES = columns("times", { function: { class: "name" }, failed: { show: (row) => ({ text: count(row.failed), class: row.failed ? "bad" : "" }) } });
const FIGURES = [
  ["Throughput", [{ name: "tasks_per_second", title: "tasks/s", colour: "blue", fill: true }, { name: "tasks_per_second_least", title: "least", colour: "blue", dash: true, least: true }], short],
  ["Failed tasks", [{ name: "failed_per_second", title: "failed/s", colour: "bad", fill: true }], short],
  ["Busy slots", [{ name: "slots", title: "slots", colour: "violet", dash: true }, { name: "running", title: "busy", colour: "blue", fill: true }, { name: "running_least", title: "least", colour: "blue", dash: true, least: true }], short],
  ["Queue", [{ name: "queued", title: "queued", colour: "amber", fill: true }, { name: "queued_least", title: "least", colour: "amber", dash: true, least: true }], short],
  ["Memory of scheduler and workers", [{ name: "memory_bytes", title: "memory", colour: "violet", fill: true }, { name: "memory_bytes_least", title: "least", colour: "violet", dash: true, least: true }], bytes],
  ["Workers", [{ name: "workers", title: "workers", colour: "teal", fill: true }, { name: "workers_least", title: "least", colour: "teal", dash: true, least: true }], short],
];

export function history(store, place) {
  const asking = new AbortController();
  let at = momentOf(place.query);
  let range = rangeOf(place.query);
  let until = null;
  let askedAt = -Infinity;
  let newest = 0;

  const picked = (then) => { location.hash = href(["history"], { range, at: Math.floor(then) }); };
  const charts = FIGURES.map(([title, lines, show]) => chart(title, lines, show, { picked, isWhole: true }));
  const ranges = choice("Time shown", RANGES, range, (value) => { location.hash = href(["history"], { range: value, at }); });
  const said = h("p", { class: "muted", role: "status" }, "Waiting for the scheduler.");
  const trouble = h("p", { class: "bad", hidden: true });
  const decisions = h("ol", { class: "notes" });
  const incidents = h("ol", { class: "notes" });
  const failureTable = table("Failures in this period", FAILURES, (row) => `${row.function} ${row.text}`, { empty: nothing("No task failed in this period", "Failures are counted by function and text.") });
  const times = table("Functions in this period", TIMES, (row) => row.function, { empty: nothing("No tasks ended in this period", "Functions appear once their tasks end.") });
  const body = h("div", { class: "page", hidden: true }, h("div", { class: "grid charts" }, charts.map((each) => each.element)),
    h("div", { class: "grid" }, panel("Runs and decisions", {}, decisions), panel("Incidents, workers, and managers", {}, incidents)),
    panel("Failures", {}, failureTable.element), panel("Functions", {}, times.element));
  const element = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "History"), h("div", { class: "tools" },
    h("button", { type: "button", on: { click: () => move(-1) } }, "Earlier"), h("button", { type: "button", on: { click: () => move(1) } }, "Later"), ranges)), said, trouble, body);

  function rangeOf(query) {
    const wanted = Number(query.get("range"));
    return RANGES.some(([value]) => value === wanted) ? wanted : DEFAULT_RANGE;
  }

  /** Move to the previous or next range. */
  function move(direction) {
    const now = store.now();
    const middle = (at ?? now - range / 2) + direction * range / 2;
    location.hash = href(["history"], { range, at: middle + range / 2 > now ? null : Math.floor(middle) });
  }

  function update(what) {
    const isDue = performance.now() - askedAt > Math.max(AGAIN_MS, 1000 * range / POINTS) && (at === null || at + range / 2 > store.now());
    if (askedAt === -Infinity || (isDue && what.includes("status"))) void load();
  }

  async function load() {
    askedAt = performance.now();
    newest += 1;
    const mine = newest;
    const now = store.now();
    until = at === null ? now : Math.min(now, at + range / 2);
    try {
      const found = await ofTime(until - range, until, asking.signal);
      if (mine !== newest) return;
      const enough = Math.min(range, RANGES.find(([value]) => value >= found.until - found.oldest)?.[0] ?? range);
      if (!place.query.has("range") && found.oldest > 0 && enough < range) show(enough);
      draw({ ...found, since: Math.max(found.since, found.until - range) });
    } catch (error) {
      if (asking.signal.aborted || mine !== newest) return;
      setText(trouble, error.message);
      trouble.hidden = false;
    }
  }

  function draw(found) {
    trouble.hidden = true;
    body.hidden = false;
    const left = found.left_out ? ` ${counted(found.left_out, "event")} omitted.` : "";
    const from = found.oldest > found.since ? ` The history begins at ${moment(found.oldest)}.` : "";
    const thin = found.points.some((point) => point.seconds > 90) ? "Each point covers several minutes: the line shows the maximum, and the dashed line the minimum." : "";
    setText(said, `${moment(found.since)} to ${moment(found.until)}: ${counted(sum(found, "done"), "task")} done, ${count(sum(found, "failed"))} failed.${from}${thin}${left} Click a chart to move to that time.`);
    const shown = columnsOf(found.points, FIGURES.flatMap(([, lines]) => lines.map((line) => line.name)));
    for (const each of charts) each.update(shown, found.since, found.until, marksOf(found.events, at));
    list(decisions, found.events.filter(isDecision), "No decisions", "Scheduler starts and stops, and decisions of the scaling policy.");
    list(incidents, folded(found.events.filter((event) => !isDecision(event))), "No incidents", "Lost workers, retried tasks, and peers that joined and left.");
    failureTable.update(found.failures);
    times.update(found.functions);
  }

  const sum = (found, name) => found.points.reduce((all, point) => all + point[name], 0);

  /**
   * Fold runs of joining and leaving clients into one line at the time of the last event, because programs do so
   * all the time.
   */
  function folded(events) {
    const isRoutine = (event) => (event.kind === "joined" || event.kind === "left") && event.subject.startsWith("client ");
    const routine = events.filter(isRoutine);
    if (routine.length < 3) return events;
    const [joined, gone] = ["joined", "left"].map((kind) => routine.filter((event) => event.kind === kind));
    const names = [...new Set(routine.map((event) => event.subject.slice(7)))];
    const text = names.slice(0, NAMED).join(", ") + (names.length > NAMED ? `, and ${count(names.length - NAMED)} more` : "");
    const line = { at: routine.at(-1).at, kind: "clients", subject: `${count(joined.length)} joined, ${count(gone.length)} left`, text, times: 1 };
    return [...events.filter((event) => !isRoutine(event)), line].sort((one, other) => one.at - other.at);
  }

  function list(into, events, title, text) {
    fill(into, events.length === 0 ? h("li", { class: "empty" }, nothing(title, text)) : events.slice(-NEWEST).reverse().map(eventLine),
      events.length > NEWEST && h("li", { class: "empty" }, `and ${counted(events.length - NEWEST, "earlier event")}`));
  }

  function show(seconds) {
    range = seconds;
    for (const button of ranges.children) button.setAttribute("aria-pressed", String(Number(button.dataset.value) === range));
  }

  function moved(next) {
    place = next;
    at = momentOf(next.query);
    show(rangeOf(next.query));
    void load();
  }

  return { title: "History", element, update, moved, close() { asking.abort(); for (const each of charts) each.close(); } };
}
