// The stores of hosts: usage, transfers, and unreachable pairs.

import { chart } from "./charts.js";
import { fill, h, href, panel, setText } from "./dom.js";
import { NONE, bytes, count, counted, percent, shortId } from "./format.js";
import { nothing } from "./notices.js";
import { columns, table } from "./table.js";

const MOST_HOSTS = 24;  // hosts with the most transfers in the matrix
const SECONDS = 300;
const NEARLY_FULL = 95;
const STORES = columns("stores", {
  host: { class: "name" },
  address: { class: "name" },
  used_percent: { show: (row) => ({ text: row.limit_bytes > 0 ? percent(row.used_percent) : NONE, class: row.used_percent >= NEARLY_FULL ? "bad" : "" }) },
  hit_percent: { show: (row) => (row.hits + row.misses ? percent(row.hit_percent) : NONE) },
});
const OBJECTS = columns("objects", {
  id: { class: "id", show: (row) => ({ text: shortId(row.id), title: row.id }) },
  function: { class: "name" },
  task: { class: "id", show: (row) => (row.task ? { text: shortId(row.task), href: href(["task", row.task]), title: row.task } : NONE) },
  client: { class: "name" },
  holders: { class: "sentence" },
});
const SIZE = OBJECTS.findIndex((column) => column.name === "size_bytes");
const MEMORY = STORES.findIndex((column) => column.name === "bytes");

export function data(store) {
  const moved = h("span", { class: "muted" });
  const rate = chart("Bytes moved between stores per second", [{ name: "moved_per_second", title: "moved", colour: "teal", fill: true }], bytes);
  const stores = table("Stores", STORES, (row) => row.id, { sort: [MEMORY, -1], empty: nothing("No stores yet", "They appear with the scheduler's first report.") });
  const objects = table("Largest objects", OBJECTS, (row) => row.id, { sort: [SIZE, -1], limit: 20, empty: nothing("No large objects", "Values of 1 MiB and more appear here.") });
  const grid = h("div", { class: "scroll", role: "group", "aria-label": "Bytes moved between hosts", tabindex: "0" });
  const listed = h("span", { class: "muted" });
  const matrix = panel("Traffic between hosts", { extra: listed, hidden: true }, grid);
  const apart = h("ul", { class: "counts" });
  const unreachable = panel("Hosts that cannot reach each other", { hidden: true },
    h("p", { class: "muted" }, "Objects between them go through the object storage. To avoid this, open their stores' ports to each other. Needed pairs are retried every minute."), apart);
  const element = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Data"), moved),
    unreachable, panel("Stores", {}, stores.element), matrix, panel("Largest objects", {}, objects.element), h("div", { class: "grid charts" }, rate.element));

  function update(what) {
    const has = (name) => what.includes("all") || what.includes(name);
    if (has("status")) setText(moved, `${counted(store.status?.totals.stores ?? 0, "store")}, ${bytes(store.status?.totals.moved_bytes ?? 0)} moved between them`);
    if (has("stores")) stores.update(store.rows("stores"));
    if (has("objects")) objects.update(store.rows("objects"));
    if (has("pairs")) drawPairs(store.rows("pairs"));
    if (has("series")) {
      rate.last(store.series, SECONDS, store.now());
    }
  }

  function drawPairs(pairs) {
    const cut = pairs.filter((pair) => pair.unreachable);
    unreachable.hidden = cut.length === 0;
    fill(apart, cut.map((pair) => h("li", {}, h("span", { class: "bad", "aria-hidden": "true" }, "✕"), h("span", {}, `${pair.source} → ${pair.target}`))));
    const sums = new Map();
    const cells = new Map();
    for (const { source, target, bytes: size } of pairs) {
      for (const host of [source, target]) sums.set(host, (sums.get(host) ?? 0) + size);
      cells.set(`${source}\n${target}`, (cells.get(`${source}\n${target}`) ?? 0) + size);
    }
    matrix.hidden = pairs.length === 0;
    const hosts = [...sums.keys()].sort((left, right) => sums.get(right) - sums.get(left)).slice(0, MOST_HOSTS)
      .sort((left, right) => left.localeCompare(right, "en", { numeric: true }));
    setText(listed, sums.size > hosts.length ? `the ${count(hosts.length)} hosts that moved the most, of ${count(sums.size)}` : "");
    const most = Math.max(1, ...cells.values());
    const blocked = new Set(cut.map((pair) => `${pair.source}\n${pair.target}`));
    fill(grid, h("table", { class: "matrix" }, h("caption", { class: "visually-hidden" }, "Rows: from this host; columns: to this host"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "from ↓ to →"), hosts.map((host) => h("th", { scope: "col", class: "number name", title: host }, host)))),
      h("tbody", {}, hosts.map((from) => h("tr", {}, h("th", { scope: "row", class: "name", title: from }, from), hosts.map((to) => cell(from, to)))))));

    function cell(from, to) {
      const key = `${from}\n${to}`;
      const size = cells.get(key) ?? 0;
      const shade = h("td", { class: `number${blocked.has(key) ? " bad" : ""}`, title: `${from} → ${to}: ${bytes(size)}${blocked.has(key) ? ", no connection between them" : ""}` },
        `${blocked.has(key) ? "✕ " : ""}${size ? bytes(size) : blocked.has(key) ? "" : "·"}`);
      if (size && !blocked.has(key)) shade.style.backgroundColor = `color-mix(in srgb, var(--teal) ${Math.round(8 + 34 * Math.sqrt(size / most))}%, transparent)`;
      return shade;
    }
  }

  return { title: "Data", element, update, close() { rate.close(); } };
}
