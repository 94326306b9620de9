// Clients and the functions that they call.

import { fill, h, href, panel } from "./dom.js";
import { NONE, count, percent, short, span } from "./format.js";
import { noTasks } from "./notices.js";
import { addedPanels } from "./panels.js";
import { profileOf } from "./profile.js";
import { drawProgress, left, progress } from "./progress.js";
import { columns, table } from "./table.js";

const FAILED = { show: (row) => ({ text: count(row.failed), class: row.failed ? "bad" : "" }) };
const SLOWER = 25;  // percent
const SHORT = 0.001;  // seconds: shorter tasks differ by chance
const named = (text, query) => ({ text: text || NONE, href: href(["tasks"], query), title: text });
const CLIENTS = columns("clients", {
  name: { class: "name", show: (row) => named(row.name || row.id, { client: row.name }) },
  id: { class: "name" },
  failed: FAILED,
});
const FUNCTIONS = columns("functions", {
  name: { class: "name", show: (row) => named(row.name, { function: row.name }) },
  max_seconds: { then: [{ title: "Profile", rank: 2, show: (row) => profileOf({ function: row.name }, `Profile of ${row.name}`) }] },
  failed: FAILED,
  progress_percent: { class: "progress", show: progress, draw: drawProgress },
  left_seconds: { show: left },
  tasks_per_second: { show: (row) => (row.tasks_per_second ? short(row.tasks_per_second) : NONE) },
  trend_percent: { show: trend },
});
const TOTAL = FUNCTIONS.findIndex((column) => column.name === "seconds_total");

/** Change of task duration since about a day earlier. */
function trend(row) {
  const { trend_percent: change, p50_before_seconds: before } = row;
  if (typeof change !== "number") return NONE;
  const sign = change > 0 ? "+" : change < 0 ? "−" : "";
  return { text: `${sign}${percent(Math.abs(change))}`, title: `p50 was ${span(before)}`, class: change >= SLOWER && row.p50_seconds >= SHORT ? "bad" : "" };
}

export function clients(store) {
  const noClients = h("div");
  const noFunctions = h("div");
  const clientTable = table("Clients", CLIENTS, (row) => row.id, { sort: [0, 1], empty: noClients });
  const functionTable = table("Functions", FUNCTIONS, (row) => row.name, { sort: [TOTAL, -1], empty: noFunctions });
  const added = addedPanels(store, "clients");
  const element = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Clients and functions")),
    panel("Clients", {}, clientTable.element), panel("Functions", { extra: h("a", { href: href(["profile"]) }, "Profiles") }, functionTable.element),
    ...added.elements);

  function update(what) {
    const all = what.includes("all");
    if (all || what.includes("clients")) {
      const rows = store.rows("clients");
      if (rows.length === 0) fill(noClients, [h("h3", {}, "No clients"), ...noTasks(store).slice(1)]);
      clientTable.update(rows);
    }
    if (all || what.includes("functions")) {
      const rows = store.rows("functions");
      if (rows.length === 0) fill(noFunctions, h("p", {}, "Functions appear once tasks start."));
      functionTable.update(rows);
    }
    added.update(what);
  }
  return { title: "Clients and functions", element, update, close: added.close };
}
