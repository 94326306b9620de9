// The page at a past time: choosing the time, the banner that names it, and the known data of each page.

import { fill, h, href, panel, setText } from "./dom.js";
import { bytes, count, counted, money, short, span } from "./format.js";
import { FAILURES, historyCharts, TIMES } from "./history.js";
import { nothing } from "./notices.js";
import { absence, eventLine, history, isDecision, moment, pointAt } from "./past.js";
import { columns, table } from "./table.js";

const HOUR = 3600;
const STEP = 600;
const AROUND = 2 * HOUR;
const MAX_LINES = 20;

/** The same view at another time; null: now. */
export function placeAt(hash, at) {
  const [path, query = ""] = (hash || "#/").split("?", 2);
  const values = new URLSearchParams(query);
  if (at === null) values.delete("at");
  else values.set("at", String(Math.floor(at)));
  const text = values.toString();
  return `${path}${text ? `?${text}` : ""}`;
}

// -- choosing

/**
 * Set up the dialog for choosing a time. choose(at): unix seconds, null for now. Returns a function that opens the
 * dialog.
 */
export function timeDialog(dialog, choose) {
  const field = h("input", { type: "datetime-local", id: "time-at", step: "60" });
  const wrong = h("p", { class: "bad", role: "alert", hidden: true }, "Give a day and a time that has passed.");
  const shortcuts = [
    ["1 hour ago", () => Date.now() / 1000 - HOUR],
    ["6 hours ago", () => Date.now() / 1000 - 6 * HOUR],
    ["This time yesterday", () => Date.now() / 1000 - 24 * HOUR],
    ["Last 03:00", () => lastNight()],
  ];
  const form = h("form", { on: { submit: taken } }, h("label", { for: "time-at" }, "Day and time"), field, wrong,
    h("div", { class: "tools" }, shortcuts.map(([text, of]) => h("button", { type: "button", on: { click: () => done(of()) } }, text))),
    h("div", { class: "tools" }, h("button", { type: "submit", class: "main" }, "Show"), h("button", { type: "button", on: { click: () => done(null) } }, "Now"), h("button", { type: "button", on: { click: () => dialog.close() } }, "Close")));
  dialog.append(h("h2", { id: "time-title" }, "Show another time"), form);

  function lastNight() {
    const then = new Date();
    then.setHours(3, 0, 0, 0);
    if (then > new Date()) then.setDate(then.getDate() - 1);
    return then / 1000;
  }

  function taken(event) {
    event.preventDefault();
    const at = new Date(field.value).getTime() / 1000;
    wrong.hidden = at > 0 && at <= Date.now() / 1000;
    if (wrong.hidden) done(at);
    else field.focus();
  }

  function done(at) {
    dialog.close();
    choose(at);
  }

  return (at) => {
    const shown = new Date((at ?? Date.now() / 1000) * 1000);
    field.value = new Date(shown - shown.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
    wrong.hidden = true;
    dialog.showModal();
    field.focus();
  };
}

/** Draw the banner that names the shown time. */
export function drawMoment(element, at, choose) {
  element.hidden = at === null;
  if (at === null) return fill(element);
  const step = (text, label, seconds) => h("button", { type: "button", "aria-label": label, on: { click: () => choose(Math.min(at + seconds, Date.now() / 1000)) } }, text);
  return fill(element, h("p", {}, "Showing ", h("b", {}, moment(at)), ", not now."), h("div", { class: "tools" },
    step("− 10 min", "10 minutes earlier", -STEP), step("+ 10 min", "10 minutes later", STEP), h("button", { type: "button", on: { click: () => choose(null) } }, "Back to now")));
}

// -- data of a past time

const KNOWN = { overview: overviewAt, workers: workersAt, failures: failuresAt, clients: functionsAt };

/** A page with the data known at a time. notKept: text about missing data. */
export function pageAt({ name, title, notKept }, at) {
  const asking = new AbortController();
  const said = h("p", { role: "status" });
  const body = h("div", { class: "page" });
  const element = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, title)), said, body);
  const more = () => h("a", { href: href(["history"], { range: 6 * HOUR, at: Math.floor(at) }) }, "the history of that time");
  let closed = () => {};
  if (Object.hasOwn(KNOWN, name)) void load();
  else fill(said, `${notKept ?? "This is not kept"}: see `, more(), ", which has the figures of each minute, decisions, incidents and failures.");

  async function load() {
    setText(said, "Asking the scheduler.");
    try {
      const found = await history(at - AROUND, Math.min(at + AROUND, Date.now() / 1000), asking.signal);
      const parts = KNOWN[name](found, at, (close) => { closed = close; });
      fill(said, ...parts.said, " See ", more(), ".");
      fill(body, ...parts.elements);
      parts.draw?.();
    } catch (error) {
      if (!asking.signal.aborted) fill(said, h("span", { class: "bad" }, error.message));
    }
  }

  return { title: `${title} at ${moment(at)}`, element, update() {}, close() { asking.abort(); closed(); } };
}

function overviewAt(found, at, closes) {
  const point = pointAt(found.points, at);
  const charts = historyCharts((picked) => { location.hash = placeAt(location.hash, picked); });
  closes(charts.close);
  const tile = (title, value, note = "") => h("div", { class: "tile" }, h("dt", {}, title), h("dd", {}, h("span", { class: "value" }, value), h("span", { class: "note" }, note)));
  const tiles = point && h("dl", { class: "tiles" },
    tile("Tasks per second", short(point.tasks_per_second), point.failed ? `${count(point.failed)} failed in the minute` : ""), tile("Busy slots", count(point.running), `of ${counted(point.slots, "slot")}`),
    tile("Queued", count(point.queued)), tile("Done in the minute", count(point.done), point.cancelled ? `${count(point.cancelled)} cancelled` : ""),
    tile("Workers", count(point.workers), counted(point.managers, "manager")), tile("Memory", bytes(point.memory_bytes), "scheduler and workers"),
    tile("Lag of the scheduler", span(point.lag_seconds), "at most"), tile("Cost in the minute", money(point.cost)));
  return {
    said: [point ? "The minute of that time, and two hours before and after it." : absence(found, at)],
    elements: [tiles || "", charts.element, h("div", { class: "grid" }, events("Decisions and runs", found.events.filter(isDecision), at), events("Incidents", found.events.filter((each) => !isDecision(each)), at))],
    draw: () => charts.draw(found, at),
  };
}

function workersAt(found, at) {
  const point = pointAt(found.points, at);
  const text = point ? `${counted(point.workers, "worker")}, and ${count(point.running)} of ${counted(point.slots, "slot")} busy. ` : `${absence(found, at)} `;
  return { said: [`${text}What each worker did is not kept.`], elements: [events("Workers and managers that came, left or were lost", found.events.filter((each) => !isDecision(each)), at)] };
}

function failuresAt(found, at) {
  const list = table("Failures", FAILURES, (row) => `${row.function} ${row.text}`, { empty: nothing("No task failed", "Failures are counted by function and text.") });
  list.update(found.failures);
  return { said: [absent(found, at), "Failures of two hours before and after that time, by function and text."], elements: [h("div", { class: "panel" }, list.element)] };
}

function functionsAt(found, at) {
  const list = table("Functions", TIMES, (row) => row.function, { empty: nothing("No tasks ended", "Functions are listed with the tasks that ended.") });
  list.update(found.functions);
  return { said: [absent(found, at), "Functions whose tasks ended within two hours of that time. Clients are not kept."], elements: [panel("Functions", {}, list.element)] };
}

const absent = (found, at) => (pointAt(found.points, at) === null ? `${absence(found, at)} ` : "");

/** The events nearest to a time, newest first. */
function events(title, all, at) {
  const near = [...all].sort((left, right) => Math.abs(left.at - at) - Math.abs(right.at - at)).slice(0, MAX_LINES).sort((left, right) => right.at - left.at);
  return panel(title, {}, h("ol", { class: "notes" }, near.length ? near.map(eventLine) : h("li", { class: "empty" }, nothing("None", "Nothing of the kind is known of these hours."))));
}
