// Network: whether the network or the cluster delays tasks, and each connection to the scheduler.

import { ask, h, panel, setText } from "./dom.js";
import { chart } from "./charts.js";
import { counted, span } from "./format.js";
import { nothing } from "./notices.js";
import { columns, table } from "./table.js";

const SECONDS = 300;
const AGAIN_MS = 2000;
const LINKS = columns("links", { name: { class: "name" }, host: { class: "name" } });
const LATENCY = LINKS.findIndex((column) => column.name === "latency_seconds");
const LINES = [
  { name: "round_trip_seconds", title: "workers, median", colour: "blue" },
  { name: "lag_seconds", title: "scheduler's loop late by", colour: "amber" },
  { name: "storage_seconds", title: "object storage", colour: "teal", dash: true },
];

function network(store) {
  const asking = new AbortController();
  const total = h("span", { class: "muted" });
  const verdict = h("p", { role: "status" });
  const times = chart("Round trips and delays", LINES, span);
  const links = table("Connections", LINKS, (row) => row.id, { sort: [LATENCY, -1], empty: nothing("No connections", "Workers, clients, and worker managers appear here.") });
  const element = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Network"), total),
    panel("Is it the network?", {}, verdict, h("p", { class: "muted" }, "Traffic between hosts is on the page ", h("a", { href: "#/data" }, "Data"), ".")),
    h("div", { class: "grid charts" }, times.element), panel("Connections to the scheduler", {}, links.element));
  let askedAt = -Infinity;

  function update(what) {
    const has = (name) => what.includes("all") || what.includes(name);
    if (has("links")) {
      const rows = store.rows("links");
      const all = store.status?.totals.links ?? rows.length;
      setText(total, rows.length < all ? `the slowest ${rows.length} of ${counted(all, "connection")}` : counted(all, "connection"));
      links.update(rows);
    }
    if (has("series")) {
      times.last(store.series, SECONDS, store.now());
      drawVerdict();
    }
  }

  async function drawVerdict() {
    if (performance.now() - askedAt < AGAIN_MS) return;
    askedAt = performance.now();
    try {
      const found = await ask("api/network", asking.signal);
      setText(verdict, found.network.text);
      verdict.className = found.network.cause === "none" ? "" : "bad";
    } catch {
      // the page already shows the connection state; the next interval retries
    }
  }

  return { title: "Network", element, update, close() { asking.abort(); times.close(); } };
}

export const extension = { pages: [{ name: "network", title: "Network", after: "clients", open: network }] };
