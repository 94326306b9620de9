// A progress bar for each call of a client, with the reason why it waits.

import { h, href, panel, setText } from "./dom.js";
import { NONE, count, short } from "./format.js";
import { drawProgress, left, progress } from "./progress.js";
import { columns, table } from "./table.js";

const NAMES_NO_FUNCTION = ["get", "tag"];
const COLUMNS = columns("calls", {
  name: { class: "name", show: (row) => ({ text: row.name || NONE, href: NAMES_NO_FUNCTION.includes(row.call) ? null : href(["tasks"], { search: row.name }), title: row.name }) },
  client: { class: "name" },
  failed: { show: (row) => ({ text: count(row.failed), class: row.failed ? "bad" : "" }) },
  progress_percent: { class: "progress", show: progress, draw: drawProgress },
  left_seconds: { show: left },
  tasks_per_second: { show: (row) => (row.tasks_per_second ? short(row.tasks_per_second) : NONE) },
  reason: { class: "sentence", show: (row) => ({ text: row.reason || NONE, href: row.oldest ? href(["task", row.oldest]) : null }) },
});

/** A panel, hidden before the first call. Unfinished calls come first. */
function calls(store) {
  const counted = h("span", { class: "muted" });
  const list = table("Calls", COLUMNS, (row) => row.id, { limit: 10 });
  const element = panel("Calls", { extra: counted, hidden: true }, list.element);

  function update(what) {
    if (!["all", "calls", "status"].some((each) => what.includes(each))) return;
    const rows = store.rows("calls");
    const known = store.status?.totals.calls ?? 0;
    const live = (row) => (row.queued + row.running > 0 ? 0 : 1);
    element.hidden = rows.length === 0;
    setText(counted, known > rows.length ? `the last ${count(rows.length)} of ${count(known)}` : "");
    list.update([...rows].sort((a, b) => live(a) - live(b) || b.began_at - a.began_at));
  }

  return { element, update };
}

export const extension = { panels: { overview: [calls] } };
