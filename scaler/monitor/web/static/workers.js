// Workers and worker managers.

import { ask, fill, h, href, panel, setText } from "./dom.js";
import { NONE, bytes, count, counted, percent, shortId, span } from "./format.js";
import { noManagers, noWorkers, nothing } from "./notices.js";
import { addedPanels } from "./panels.js";
import { profileOf } from "./profile.js";
import { columns, table } from "./table.js";
import { TASKS } from "./tasks.js";

const AGAIN_MS = 2000;

const MANAGERS = columns("managers", {
  id: { class: "name" },
  failed: { show: (row) => ({ text: count(row.failed), class: row.failed ? "bad" : "" }) },
  max_slots: { show: (row) => (row.max_slots > 0 ? count(row.max_slots) : "no limit") },
  reason: {
    wide: true,
    show: (row) => ({ text: row.trouble || row.reason || NONE, class: row.trouble ? "bad" : "", title: row.trouble ? `Trouble. Last decision: ${row.reason}` : "The reason for the last decision" }),
  },
});

const busy = (worker) => worker.processors.filter((processor) => processor.running);

/** The state of a worker in one word. */
function condition(worker) {
  if (!worker.connected) return { text: "✕ out of contact", class: "bad" };
  if (worker.quarantined) return { text: "✕ quarantined", class: "bad" };
  if (worker.draining) return { text: "◌ draining", class: "muted" };
  return busy(worker).length ? { text: "● busy", class: "good" } : { text: "○ idle", class: "muted" };
}

function runs(worker) {
  const [first, ...others] = busy(worker);
  if (!first) return "–";
  return `${first.function || shortId(first.running)} ${span(first.running_seconds)}${others.length ? ` +${others.length}` : ""}`;
}

/** The running tasks, with a link to the profile of the first. */
function running(worker) {
  const tasks = busy(worker);
  const title = `Where it spends its time: ${tasks.map((each) => each.function).join(", ")}`;
  return { text: runs(worker), ...(tasks.length ? { href: href(["profile"], { task: tasks[0].running }), title } : {}) };
}

const WORKERS = columns("workers", {
  name: {
    class: "name",
    show: (row) => ({ text: row.name, href: href(["worker", row.id]), title: row.name }),
    then: [
      { title: "State", show: condition, by: (row) => condition(row).text.slice(2) },
      { title: "Runs", wide: true, show: running, by: runs },
    ],
  },
  manager: { class: "name" },
});

const IN_MAP = new Set(["name", "failures_heat", "slowness_heat", "lag_heat", "memory_heat", "cpu_heat", "disk_heat", "fault"]);
const MAP = columns("workers", {
  name: { class: "name", show: (row) => ({ text: row.name, href: href(["worker", row.id]), title: row.name }) },
  fault: { wide: true, class: "widest" },
}).filter((column) => IN_MAP.has(column.name)).map((column) => ({ ...column, rank: null }));
const LISTED = WORKERS.filter((column) => column.name === "name" || !IN_MAP.has(column.name));
const MAX_BAD = 20;

const PEERS = 4;  // minimum workers for comparing tasks

/** Text of the empty map. Says that no worker is bad only if all are known. */
function verdict(rows) {
  const unknown = rows.filter((row) => row.failures_heat === null || row.slowness_heat === null).length;
  if (rows.length > 0 && unknown === 0) return nothing("No worker is worse than the others", "Tasks of the same functions fail as rarely and take as long on every worker. Memory, CPU, and disk suffice.");
  const how = "Tasks are compared once four workers have each run five tasks of the same function. Memory, CPU, and disk are judged per worker.";
  if (rows.length < PEERS) return nothing(`Unknown with fewer than ${PEERS} workers`, how);
  return nothing(`Unknown for ${unknown === rows.length ? "all workers" : `${count(unknown)} of ${counted(rows.length, "worker")}`}`, how);
}

export function workers(store) {
  const noManager = h("div");
  const noWorker = h("div");
  const unjudged = h("div");
  const managers = table("Worker managers", MANAGERS, (row) => row.id, { sort: [0, 1], empty: noManager });
  const list = table("Workers", LISTED, (row) => row.id, { sort: [0, 1], empty: noWorker });
  const map = table("Bad workers", MAP, (row) => row.id, { limit: MAX_BAD, empty: unjudged });
  const filter = h("input", { type: "search", placeholder: "Name, host, manager, function …", "aria-label": "Filter workers", class: "filter", "aria-keyshortcuts": "/", on: { input: () => update(["workers"]) } });
  const reasons = h("ol", { class: "notes narrow-only" });  // text that does not fit into a narrow table
  const faults = h("ol", { class: "notes narrow-only" });
  const listed = h("span", { class: "muted" });
  const added = addedPanels(store, "workers");
  const element = h("div", { class: "page" },
    h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Workers")),
    panel("Worker managers", {}, managers.element, reasons),
    panel("Worst workers", {}, map.element, faults),
    panel("Workers", { extra: h("div", { class: "tools" }, listed, filter) }, list.element), added.elements);

  function update(what) {
    const has = (name) => what.includes("all") || what.includes(name);
    added.update(what);
    if (has("managers")) {
      const rows = store.rows("managers");
      if (rows.length === 0) fill(noManager, noManagers(store));
      managers.update(rows);
      fill(reasons, rows.map((row) => h("li", {}, h("b", {}, row.id), h("span", { class: row.trouble ? "bad" : "muted" }, row.trouble || row.reason || "–"))));
    }
    if (has("workers") || has("status")) {
      const wanted = filter.value.toLowerCase();
      const rows = store.rows("workers");
      const found = wanted ? rows.filter((row) => [row.name, row.host, row.manager, row.capabilities, condition(row).text, runs(row)].join("\n").toLowerCase().includes(wanted)) : rows;
      if (found.length === 0) fill(noWorker, rows.length === 0 ? noWorkers(store) : nothing("No worker matches", "Change or clear the filter."));
      list.update(found);
      fill(unjudged, verdict(rows));
      const bad = found.filter((row) => row.heat > 0).sort((one, other) => other.heat - one.heat);
      map.update(bad);
      fill(faults, bad.slice(0, MAX_BAD).map((row) => h("li", {}, h("b", {}, row.name), h("span", { class: "muted" }, row.fault))));
      const total = store.status?.totals.workers ?? 0;
      setText(listed, total > rows.length ? `${count(rows.length)} of ${count(total)} shown: troubled workers, then the busiest` : wanted ? `${count(found.length)} of ${count(rows.length)}` : "");
    }
  }
  return { title: "Workers", element, update, filter, close: added.close };
}

const PROCESSORS = columns("processors", {
  pid: { then: [{ title: "State", show: (row) => (row.suspended ? "‖ suspended" : row.running ? "● running" : row.initialized ? "○ idle" : "◌ starting") }] },
  running: { show: (row) => (row.running ? { text: shortId(row.running), href: href(["task", row.running]), title: row.running } : NONE) },
  function: { wide: true },
  running_seconds: {
    show: (row) => (row.running ? span(row.running_seconds) : NONE),
    then: [{ title: "Profile", show: (row) => (row.running ? profileOf({ task: row.running }, "Profile of the task") : NONE) }],
  },
});

/** One worker, by its id. */
export function worker(store, place) {
  const { id } = place;
  let row = null;
  let askedAt = -Infinity;
  const asking = new AbortController();
  const added = addedPanels(store, "worker", place);
  const heading = h("h1", { tabindex: "-1" }, "Worker");
  const facts = h("dl", { class: "facts" });
  const gone = h("div", { class: "empty", hidden: true });
  const processors = table("Processors", PROCESSORS, (each) => each.pid, { sort: [0, 1], empty: nothing("No processors", "The worker has not reported any yet.") });
  const tasks = table("Recent tasks", TASKS.filter((column) => column.name !== "worker"), (task) => task.id, { empty: nothing("No recent tasks", "Running and ended tasks appear here.") });
  const element = h("div", { class: "page" },
    h("p", { class: "crumbs" }, h("a", { href: href(["workers"]) }, "Workers")),
    h("div", { class: "page-head" }, heading), gone, facts,
    panel("Processors", {}, processors.element), panel("Recent tasks", {}, tasks.element), added.elements);

  function update(what) {
    added.update(what);
    const found = store.tables.workers.get(id);
    if (found) row = found;
    gone.hidden = found !== undefined;
    if (!found) fill(gone, nothing("This worker is no longer listed", "It ended or was lost. If it was lost, the incidents on the overview show the reason."));
    if (row) draw(row, found !== undefined);
    if (row && (what.includes("all") || what.includes("tasks") || what.includes("clock"))) void load();
  }

  function draw(each, here) {
    setText(heading, each.name);
    const state = here ? condition(each) : { text: "✕ gone", class: "bad" };
    fill(facts, [
      ["State", h("span", { class: state.class }, state.text)], ["Slots", `${count(each.slots)}, ${count(each.free)} free`], ["Queued", count(each.queued)],
      ["Suspended", count(each.suspended)], ["Sent so far", count(each.sent)], ["CPU", percent(each.cpu_percent)], ["Memory", `${bytes(each.rss_bytes)}, at most ${bytes(each.memory_peak_bytes)}, on average ${bytes(each.memory_mean_bytes)}`],
      ["Agent", `${percent(each.agent_cpu_percent)}, ${bytes(each.agent_rss_bytes)}`], ["Round trip", span(each.latency_seconds)], ["Worst figure", each.heat ? `${each.heat} of 100: ${each.fault}` : "no worse than others"],
      ["Host", each.host || "–"], ["Process", String(each.pid || "–")],
      ["Manager", each.manager || "–"], ["Unit", each.unit || "–"], ["Capabilities", each.capabilities || "–"], ["Id", h("code", {}, each.id)],
    ].map(([name, value]) => h("div", { class: name === "Id" ? "long" : null }, h("dt", {}, name), h("dd", {}, value))));
    processors.update(here ? each.processors : []);
  }

  async function load() {
    if (performance.now() - askedAt < AGAIN_MS) return;
    askedAt = performance.now();
    try {
      tasks.update((await ask(`api/tasks?limit=50&worker=${encodeURIComponent(row.name)}`, asking.signal)).tasks);
    } catch {
      return;  // the page already shows the connection state; the next interval retries
    }
  }
  return { title: "Worker", element, update, close() { asking.abort(); added.close(); } };
}
