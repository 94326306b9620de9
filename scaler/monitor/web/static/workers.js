// Workers and those who start them.

import { ask, fill, h, href, panel, setText } from "./dom.js";
import { bytes, count, percent, shortId, span } from "./format.js";
import { noManagers, noWorkers, nothing } from "./notices.js";
import { table } from "./table.js";
import { taskColumns } from "./tasks.js";

const AGAIN_MS = 2000;

const MANAGERS = [
  { title: "Manager", show: (row) => ({ text: row.id, title: row.id }), by: (row) => row.id, class: "name" },
  { title: "Kind", show: (row) => row.kind, by: (row) => row.kind, rank: 2 },
  { title: "Desired", number: true, show: (row) => count(row.desired), by: (row) => row.desired ?? -1, help: "Units that the scheduler has asked for" },
  { title: "Running", number: true, show: (row) => count(row.running), by: (row) => row.running },
  { title: "Pending", number: true, show: (row) => count(row.pending), by: (row) => row.pending, help: "Units that are on their way" },
  { title: "Failed", number: true, show: (row) => ({ text: count(row.failed), class: row.failed ? "bad" : "" }), by: (row) => row.failed },
  { title: "Slots/unit", number: true, show: (row) => count(row.unit_slots), rank: 3 },
  { title: "Most slots", number: true, show: (row) => (row.max_slots > 0 ? count(row.max_slots) : "no limit"), rank: 3 },
  { title: "Capabilities", show: (row) => row.capabilities || "–", rank: 3 },
  { title: "Why", wide: true, show: (row) => ({ text: row.trouble || row.reason || "–", class: row.trouble ? "bad" : "", title: row.trouble ? `Trouble. Last decision: ${row.reason}` : "The reason of the last decision" }) },
];

const busy = (worker) => worker.processors.filter((processor) => processor.running);

/** What is the matter with a worker, in a word. */
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

const WORKERS = [
  { title: "Worker", show: (row) => ({ text: row.name, href: href(["worker", row.id]), title: row.name }), by: (row) => row.name, class: "name" },
  { title: "State", show: condition, by: (row) => condition(row).text.slice(2) },
  { title: "Runs", show: (row) => ({ text: runs(row), title: busy(row).map((each) => each.function).join(", ") }), by: (row) => runs(row), wide: true },
  { title: "Slots", number: true, show: (row) => count(row.slots), by: (row) => row.slots, rank: 2 },
  { title: "Free", number: true, show: (row) => count(row.free), by: (row) => row.free, rank: 2 },
  { title: "Queued", number: true, show: (row) => count(row.queued), by: (row) => row.queued },
  { title: "Susp.", number: true, show: (row) => count(row.suspended), by: (row) => row.suspended, rank: 3, help: "Suspended tasks" },
  { title: "Sent", number: true, show: (row) => count(row.sent), by: (row) => row.sent, rank: 2, help: "Tasks sent to it so far" },
  { title: "CPU", number: true, show: (row) => percent(row.cpu_percent), by: (row) => row.cpu_percent, help: "Of all its processors" },
  { title: "Memory", number: true, show: (row) => bytes(row.rss_bytes), by: (row) => row.rss_bytes, help: "Of all its processors" },
  { title: "Agent CPU", number: true, show: (row) => percent(row.agent_cpu_percent), by: (row) => row.agent_cpu_percent, rank: 3 },
  { title: "Agent mem.", number: true, show: (row) => bytes(row.agent_rss_bytes), by: (row) => row.agent_rss_bytes, rank: 3 },
  { title: "Lag", number: true, show: (row) => span(row.latency_seconds), by: (row) => row.latency_seconds, rank: 3, help: "Between the scheduler and the worker" },
  { title: "Manager", show: (row) => ({ text: row.manager || "–", title: row.manager }), by: (row) => row.manager, rank: 3, class: "name" },
  { title: "Capabilities", show: (row) => row.capabilities || "–", by: (row) => row.capabilities, rank: 3 },
];

export function workers(store) {
  const noManager = h("div");
  const noWorker = h("div");
  const managers = table("Worker managers", MANAGERS, (row) => row.id, { sort: [0, 1], empty: noManager });
  const list = table("Workers", WORKERS, (row) => row.id, { sort: [0, 1], empty: noWorker });
  const filter = h("input", { type: "search", placeholder: "Name, manager, function …", "aria-label": "Filter workers", class: "filter", "aria-keyshortcuts": "/", on: { input: () => update(["workers"]) } });
  const reasons = h("ol", { class: "notes narrow-only" });  // where the table has no room for them
  const counted = h("span", { class: "muted" });
  const element = h("div", { class: "page" },
    h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Workers")),
    panel("Worker managers", {}, managers.element, reasons),
    panel("Workers", { extra: h("div", { class: "tools" }, counted, filter) }, list.element));

  function update(what) {
    const has = (name) => what.includes("all") || what.includes(name);
    if (has("managers")) {
      const rows = store.rows("managers");
      if (rows.length === 0) fill(noManager, noManagers(store));
      managers.update(rows);
      fill(reasons, rows.map((row) => h("li", {}, h("b", {}, row.id), h("span", { class: row.trouble ? "bad" : "muted" }, row.trouble || row.reason || "–"))));
    }
    if (has("workers") || has("status")) {
      const wanted = filter.value.toLowerCase();
      const rows = store.rows("workers");
      const found = wanted ? rows.filter((row) => [row.name, row.manager, row.capabilities, condition(row).text, runs(row)].join("\n").toLowerCase().includes(wanted)) : rows;
      if (found.length === 0) fill(noWorker, rows.length === 0 ? noWorkers(store) : nothing("No worker fits", "Change or clear the filter."));
      list.update(found);
      const total = store.status?.totals.workers ?? 0;
      setText(counted, total > rows.length ? `${count(rows.length)} of ${count(total)} listed: those in trouble and the busiest` : wanted ? `${count(found.length)} of ${count(rows.length)}` : "");
    }
  }
  return { title: "Workers", element, update, filter, close() {} };
}

const PROCESSORS = [
  { title: "Process", show: (row) => String(row.pid), by: (row) => row.pid },
  { title: "State", show: (row) => (row.suspended ? "‖ suspended" : row.running ? "● running" : row.initialized ? "○ idle" : "◌ starting") },
  { title: "Task", show: (row) => (row.running ? { text: shortId(row.running), href: href(["task", row.running]), title: row.running } : "–") },
  { title: "Function", show: (row) => row.function || "–", wide: true },
  { title: "For", number: true, show: (row) => (row.running ? span(row.running_seconds) : "–"), by: (row) => row.running_seconds },
  { title: "CPU", number: true, show: (row) => percent(row.cpu_percent), by: (row) => row.cpu_percent },
  { title: "Memory", number: true, show: (row) => bytes(row.rss_bytes), by: (row) => row.rss_bytes },
];

/** One worker, by its id. */
export function worker(store, place) {
  const { id } = place;
  let row = null;
  let askedAt = -Infinity;
  const asking = new AbortController();
  const heading = h("h1", { tabindex: "-1" }, "Worker");
  const facts = h("dl", { class: "facts" });
  const gone = h("div", { class: "empty", hidden: true });
  const processors = table("Processors", PROCESSORS, (each) => each.pid, { sort: [0, 1], empty: nothing("No processors", "The worker has not told of any yet.") });
  const tasks = table("Its last tasks", taskColumns().filter((column) => column.title !== "Worker"), (task) => task.id, { empty: nothing("No tasks lately", "Those that run or have ended appear here.") });
  const element = h("div", { class: "page" },
    h("p", { class: "crumbs" }, h("a", { href: href(["workers"]) }, "Workers")),
    h("div", { class: "page-head" }, heading), gone, facts,
    panel("Processors", {}, processors.element), panel("Its last tasks", {}, tasks.element));

  function update(what) {
    const found = store.tables.workers.get(id);
    if (found) row = found;
    gone.hidden = found !== undefined;
    if (!found) fill(gone, nothing("This worker is not listed any more", "It has ended, or it was lost: the incidents of the overview say which."));
    if (row) draw(row, found !== undefined);
    if (row && (what.includes("all") || what.includes("tasks") || what.includes("clock"))) void load();
  }

  function draw(each, here) {
    setText(heading, each.name);
    const state = here ? condition(each) : { text: "✕ gone", class: "bad" };
    fill(facts, [
      ["State", h("span", { class: state.class }, state.text)], ["Slots", `${count(each.slots)}, ${count(each.free)} free`], ["Queued", count(each.queued)],
      ["Suspended", count(each.suspended)], ["Sent so far", count(each.sent)], ["CPU", percent(each.cpu_percent)], ["Memory", bytes(each.rss_bytes)],
      ["Agent", `${percent(each.agent_cpu_percent)}, ${bytes(each.agent_rss_bytes)}`], ["Lag", span(each.latency_seconds)],
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
      return;  // the state of the connection is shown already; it is asked again
    }
  }
  return { title: "Worker", element, update, close() { asking.abort(); } };
}
