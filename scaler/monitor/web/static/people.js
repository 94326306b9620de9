// Clients, and the functions that they call.

import { fill, h, href, panel } from "./dom.js";
import { count, span } from "./format.js";
import { noTasks } from "./notices.js";
import { table } from "./table.js";

const COUNTS = [
  { title: "Queued", number: true, show: (row) => count(row.queued), by: (row) => row.queued },
  { title: "Running", number: true, show: (row) => count(row.running), by: (row) => row.running },
  { title: "Ended", number: true, show: (row) => count(row.ended), by: (row) => row.ended },
  { title: "Failed", number: true, show: (row) => ({ text: count(row.failed), class: row.failed ? "bad" : "" }), by: (row) => row.failed },
];
const CLIENTS = [
  { title: "Client", show: (row) => ({ text: row.name || row.id, href: href(["tasks"], { client: row.id }), title: row.name || row.id }), by: (row) => row.name, class: "name" },
  { title: "Id", show: (row) => ({ text: row.id, title: row.id }), rank: 3, class: "name" },
  ...COUNTS,
];
const FUNCTIONS = [
  { title: "Function", show: (row) => ({ text: row.name || "–", href: href(["tasks"], { function: row.name }), title: row.name }), by: (row) => row.name, class: "name" },
  ...COUNTS,
  { title: "Time in all", number: true, show: (row) => span(row.seconds_total), by: (row) => row.seconds_total, rank: 2 },
  { title: "Mean", number: true, show: (row) => (row.ended ? span(row.mean_seconds) : "–"), by: (row) => row.mean_seconds, rank: 2 },
];

export function people(store) {
  const noClients = h("div");
  const noFunctions = h("div");
  const clients = table("Clients", CLIENTS, (row) => row.id, { sort: [0, 1], empty: noClients });
  const functions = table("Functions", FUNCTIONS, (row) => row.name, { sort: [3, -1], empty: noFunctions });
  const element = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Clients and functions")),
    panel("Clients", {}, clients.element), panel("Functions", {}, functions.element));

  function update(what) {
    const all = what.includes("all");
    if (all || what.includes("clients")) {
      const rows = store.rows("clients");
      if (rows.length === 0) fill(noClients, [h("h3", {}, "No clients now"), ...noTasks(store).slice(1)]);
      clients.update(rows);
    }
    if (all || what.includes("functions")) {
      const rows = store.rows("functions");
      if (rows.length === 0) fill(noFunctions, h("p", {}, "Functions appear with the first tasks."));
      functions.update(rows);
    }
  }
  return { title: "Clients and functions", element, update, close() {} };
}
