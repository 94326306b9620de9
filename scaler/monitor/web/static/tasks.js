// Tasks: the last tasks, and the page of one task.

import { ask, fill, h, href, panel, setText } from "./dom.js";
import { bytes, clock, count, glyph, isOver, isQueued, micros, shortId, span, stateClass, stateName } from "./format.js";
import { noTasks, nothing, replay } from "./notices.js";
import { profileOf } from "./profile.js";
import { columns, table } from "./table.js";
import { waiting } from "./waiting.js";

const LIMIT = 200;
const TYPING_MS = 200;
const AGAIN_MS = 1000;
const STATES = ["running", "done", "cancelled", "failed"];
const FILTERS = ["search", "state", "function", "worker", "client"];

const isRunning = (task) => task.state === "running" || task.state === "suspended";

export const TASKS = columns("tasks", {
  id: { class: "id", show: (task) => ({ text: shortId(task.id), href: href(["task", task.id]), title: task.id }) },
  state: { class: "state-cell", show: (task) => ({ text: `${glyph(task.state)} ${stateName(task.state)}`, class: stateClass(task.state) }) },
  function: { class: "name" }, worker: { class: "name" }, client: { class: "name" },
  peak_bytes: { then: [{ title: "Profile", rank: 2, show: (task) => (isRunning(task) ? profileOf({ task: task.id }, "Profile of the task") : "") }] },
  text: { wide: true, show: (task) => ({ text: task.text, title: task.text, class: task.failed ? "bad" : "" }) },
});

export function tasks(store, place) {
  const empty = h("div");
  const list = table("Tasks", TASKS, (task) => task.id, { empty, limit: LIMIT });
  const queued = waiting(store);
  const fields = {};
  let timer = null;
  let asking = new AbortController();
  let askedAt = -Infinity;
  let waits = false;

  function field(name, label, properties) {
    fields[name] = h("input", { type: "search", autocomplete: "off", ...properties, on: { input: typed } });
    return h("label", { class: `field field-${name}` }, h("span", {}, label), fields[name]);
  }
  const functions = h("datalist", { id: "known-functions" });
  const known = h("datalist", { id: "known-workers" });
  fields.state = h("select", { on: { change: chosen } }, h("option", { value: "" }, "any"), STATES.map((state) => h("option", { value: state }, state)));
  const clear = h("a", { href: href(["tasks"]), class: "button", hidden: true }, "Clear");
  const form = h("form", { class: "filters", role: "search", on: { submit: (event) => { event.preventDefault(); chosen(); } } },
    field("search", "Search", { placeholder: "id, name, error …", "aria-keyshortcuts": "/" }),
    h("label", { class: "field" }, h("span", {}, "State"), fields.state),
    field("function", "Function", { list: "known-functions" }), field("worker", "Worker", { list: "known-workers" }), field("client", "Client", {}), clear, functions, known);
  const counted = h("span", { class: "muted", role: "status" });
  const trouble = h("p", { class: "bad", hidden: true });
  const element = h("div", { class: "page" },
    h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Tasks"), counted), queued.element, form, trouble, h("div", { class: "panel" }, list.element));
  moved(place);

  function query() {
    return Object.fromEntries(FILTERS.map((name) => [name, fields[name].value.trim()]));
  }

  function filtered() {
    return FILTERS.some((name) => fields[name].value.trim());
  }

  function typed() {
    clearTimeout(timer);
    timer = setTimeout(chosen, TYPING_MS);
  }

  function chosen() {
    clearTimeout(timer);
    const wanted = href(["tasks"], query());
    // typing creates no history entries
    if (wanted !== location.hash) history.replaceState(null, "", wanted);
    refresh();
  }

  /** Show the filters of the URL. */
  function moved(to) {
    for (const name of FILTERS) {
      const value = to.query.get(name) ?? "";
      if (name === "state" && value && !STATES.includes(value) && ![...fields.state.options].some((each) => each.value === value)) {
        fields.state.append(h("option", { value }, stateName(value)));
      }
      if (fields[name].value !== value) fields[name].value = value;
    }
    refresh();
  }

  function refresh() {
    askedAt = -Infinity;
    asking.abort();
    asking = new AbortController();
    waits = false;
    update(["all"]);
  }

  function update(what) {
    const all = what.includes("all");
    if (all || what.includes("functions")) options(functions, store.rows("functions").map((row) => row.name));
    if (all || what.includes("waiting")) queued.update();
    if (all) options(known, store.rows("workers").map((row) => row.name));
    clear.hidden = !filtered();
    if (filtered()) {
      if (all || what.includes("tasks") || what.includes("waiting")) void load();
    } else if (all || what.includes("tasks")) {
      show(store.lastTasks(), `${count(store.tasks.size)} most recent`);
    }
  }

  async function load() {
    if (waits) return;
    waits = true;
    const { signal } = asking;
    await new Promise((done) => setTimeout(done, Math.max(0, askedAt + AGAIN_MS - performance.now())));
    if (signal.aborted) return;
    askedAt = performance.now();
    try {
      const found = await ask(`api/tasks?${new URLSearchParams({ ...query(), limit: String(LIMIT) })}`, signal);
      show(found.tasks, `${found.tasks.length < LIMIT ? count(found.tasks.length) : `the ${query().search ? "first" : "last"} ${LIMIT}`} found ${query().search ? "among live tasks and" : "in"} the last ${count(found.kept)}`);
      trouble.hidden = true;
    } catch (error) {
      if (signal.aborted) return;
      setText(trouble, error.message);
      trouble.hidden = false;
    }
    waits = false;
  }

  function show(rows, said) {
    if (rows.length === 0) fill(empty, filtered() ? nothing("No task matches", "Change or clear the filters. Without a search text, the list contains only tasks that ran recently.") : queued.element.hidden ? noTasks(store) : nothing("No task has run yet", "Waiting tasks are listed above."));
    list.update(rows);
    setText(counted, rows.length ? said : "");
  }

  return { title: "Tasks", element, update, moved, filter: fields.search, close() { clearTimeout(timer); asking.abort(); } };
}

function options(list, names) {
  const wanted = names.slice(0, 200);
  if (wanted.join("\n") !== [...list.children].map((each) => each.value).join("\n")) fill(list, wanted.map((value) => h("option", { value })));
}

/** One task, by its id. */
export function task(store, place) {
  const { id } = place;
  const asking = new AbortController();
  let known = null;
  let askedAt = -Infinity;
  let settled = false;
  const state = h("span", { class: "badge", hidden: true });
  const heading = h("h1", { tabindex: "-1" }, "Task ", h("code", {}, shortId(id)));
  const said = h("p", { class: "explained", role: "status" }, "Waiting for the scheduler …");
  const facts = h("dl", { class: "facts" });
  const errorText = h("p", { class: "bad error-text" });
  const traceback = h("pre", { tabindex: "0", "aria-label": "Traceback" });
  const errors = panel("Error", { hidden: true }, errorText, traceback);
  const how = h("div");
  const log = h("div", { class: "log" });
  const element = h("div", { class: "page" },
    h("p", { class: "crumbs" }, h("a", { href: href(["tasks"]) }, "Tasks")),
    h("div", { class: "page-head titled" }, heading, state, h("a", { class: "button", href: href(["profile"], { task: id }) }, "Flame graph")),
    panel("Status", {}, said), facts, errors, how,
    panel("Output", { extra: h("button", { type: "button", on: { click: () => void readLog() } }, "Reload") }, log));

  function update(what) {
    const listed = store.tasks.get(id);
    const changed = listed !== undefined && (listed.state !== known?.state || listed.attempt !== known?.attempt);
    if (what.includes("all") || changed || (!settled && what.includes("clock") && performance.now() - askedAt > 3 * AGAIN_MS)) void load();
  }

  async function load() {
    askedAt = performance.now();
    await Promise.all([readTask(), explain(), readLog()]);
    settled = known !== null && isOver(known.state);
  }

  async function readTask() {
    try {
      known = (await ask(`api/tasks/${encodeURIComponent(id)}`, asking.signal)).task;
      draw(known);
    } catch (error) {
      if (error.status === 404 || asking.signal.aborted) return;  // a waiting task is explained instead
      setText(said, error.message);
    }
  }

  async function explain() {
    try {
      setText(said, (await ask(`api/tasks/${encodeURIComponent(id)}/explain`, asking.signal)).text);
    } catch (error) {
      if (!asking.signal.aborted) setText(said, error.message);
    }
  }

  async function readLog() {
    try {
      const { stdout, stderr, cut } = await ask(`api/tasks/${encodeURIComponent(id)}/log`, asking.signal);
      if (!stdout && !stderr) fill(log, h("p", { class: "muted" }, "No output is stored."));
      else fill(log, cut > 0 && h("p", { class: "muted" }, `${bytes(cut)} in the middle are omitted.`), output("stdout", stdout), output("stderr", stderr));
    } catch (error) {
      if (!asking.signal.aborted) fill(log, h("p", { class: "muted" }, error.message));
    }
  }

  const output = (name, text) => text && [h("h3", {}, name), h("pre", { tabindex: "0", "aria-label": name }, text)];

  function draw(row) {
    setText(state, `${glyph(row.state)} ${stateName(row.state)}`);
    state.className = `badge ${stateClass(row.state)}`;
    state.hidden = false;
    const from = [...store.tables.workers.values()].find((each) => each.name === row.worker);
    fill(facts, [
      ["Function", h("a", { href: href(["tasks"], { function: row.function }) }, row.function || "–")],
      ["Worker", row.worker ? h("a", { href: from ? href(["worker", from.id]) : href(["tasks"], { worker: row.worker }) }, row.worker, from ? ` (${from.host}, pid ${from.pid})` : "") : "–"],
      ["Client", row.client ? h("a", { href: href(["tasks"], { client: row.client }) }, row.client) : "–"],
      // The maximum matters for a task that runs again.
      ["Attempt", row.attempt > 1 || row.ended_at === null ? `${count(row.attempt)} of ${count(row.max_attempts)}` : row.attempt > 0 ? "1" : "never started"],
      (row.failures > 0 || row.losses > 0) && ["Earlier attempts", [row.failures > 0 && `${count(row.failures)} raised an exception in retry_on`, row.losses > 0 && `${count(row.losses)} lost with their process or worker`].filter(Boolean).join(", ")],
      row.tags && ["Tags", row.tags],
      row.failed_input && ["Failed input", h("a", { href: href(["task", row.failed_input]) }, h("code", {}, shortId(row.failed_input)))],
      ["Started", isQueued(row.state) || row.attempt === 0 ? "–" : clock(row.started_at)], ["Ended", clock(row.ended_at)],
      ["Duration", isQueued(row.state) ? "–" : row.ended_at === null ? span(Math.max(0, store.now() - row.started_at)) : micros(row.duration_us)],
      ["Inputs", row.inputs_us > 0 ? `${bytes(row.inputs_bytes)} in ${micros(row.inputs_us)}` : "–"],
      ["CPU time", micros(row.cpu_us)], ["Peak memory", row.peak_bytes > 0 ? bytes(row.peak_bytes) : "–"],
      ["Id", h("code", {}, row.id)],
    ].filter(Boolean).map(([name, value]) => h("div", { class: name === "Id" ? "long" : null }, h("dt", {}, name), h("dd", {}, value))));
    if (row.failed && row.attempt > 0 && !how.firstChild) fill(how, replay(row.id));
    // The lines after the first are attempts and frames.
    const [first, ...more] = row.text.split("\n");
    const lines = [...more, row.traceback].filter(Boolean).join("\n");
    errors.hidden = !row.text && !row.traceback;
    setText(errorText, first);
    setText(traceback, lines);
    traceback.hidden = !lines;
  }

  return { title: `Task ${shortId(id)}`, element, update, close() { asking.abort(); } };
}
