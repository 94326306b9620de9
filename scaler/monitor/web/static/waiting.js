// Waiting tasks by function and needs, with the reasons.

import { h, href, panel, setText } from "./dom.js";
import { NONE, count, span } from "./format.js";
import { columns, table } from "./table.js";

const COLUMNS = columns("waiting", {
  function: { class: "name", show: (row) => ({ text: row.function || NONE, href: href(["tasks"], { search: row.function }), title: row.function }) },
  age_seconds: { show: (row) => ({ text: span(row.age_seconds), href: row.oldest ? href(["task", row.oldest]) : null }) },
  reason: { class: "sentence" },
});
const OLDEST = COLUMNS.findIndex((column) => column.name === "age_seconds");

/** A panel, hidden while no task waits. */
export function waiting(store) {
  const counted = h("span", { class: "muted" });
  const list = table("Waiting tasks", COLUMNS, (row) => row.id, { sort: [OLDEST, -1], limit: 10 });
  const element = panel("Waiting tasks", { extra: counted, hidden: true }, list.element);

  function update() {
    const rows = store.rows("waiting");
    const kinds = store.status?.totals.waiting ?? 0;
    element.hidden = rows.length === 0;
    setText(counted, kinds > rows.length ? `the ${count(rows.length)} kinds with the oldest tasks, of ${count(kinds)}` : "");
    list.update(rows);
  }

  return { element, update };
}
