// The workers' own log records, from warnings on.

import { ask, h, href, panel, setText } from "./dom.js";
import { count, shortId } from "./format.js";
import { columns, table } from "./table.js";

const AGAIN_MS = 5000;
const LIMIT = 200;
const FIRST_LINES = 10;
const LEVELS = { WARNING: "", ERROR: "bad", CRITICAL: "bad" };

/** A panel for one worker or all workers, hidden before the first record. */
function logs(_store, { id }) {
  const asking = new AbortController();
  let askedAt = -Infinity;
  const counted = h("span", { class: "muted" });
  const list = table("Worker logs", columns("logs", {
    level: { show: (row) => ({ text: row.level, class: LEVELS[row.level] ?? "" }) },
    worker: { class: "name", show: (row) => ({ text: row.worker, href: href(["worker", row.worker_id]), title: row.worker }) },
    text: {
      class: "frame",
      show: (row) => ({ text: row.text, title: row.logger }),
      then: [{ title: "Task", class: "id", rank: 2, show: (row) => (row.task ? { text: shortId(row.task), href: href(["task", row.task]), title: row.task } : "") }],
    },
  }).filter((column) => id === "" || column.name !== "worker"), (row) => row.id, { limit: FIRST_LINES });
  const element = panel(id ? "Its log" : "Worker logs", { extra: counted, hidden: true }, list.element);

  async function load() {
    askedAt = performance.now();
    try {
      const found = await ask(`api/logs?${new URLSearchParams({ worker: id, limit: String(LIMIT) })}`, asking.signal);
      element.hidden = found.logs.length === 0;
      setText(counted, found.logs.length < LIMIT ? "warnings and errors, the newest first" : `the last ${count(LIMIT)} warnings and errors`);
      list.update(found.logs);
    } catch {
      // the page already shows the connection state; the next interval retries
    }
  }

  function update(what) {
    if (what.includes("all") || (what.includes("clock") && performance.now() - askedAt >= AGAIN_MS - 100)) void load();
  }
  return { element, update, close: () => asking.abort() };
}

export const extension = { panels: { workers: [logs], worker: [logs] } };
