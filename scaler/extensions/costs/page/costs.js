// Costs of units, with the limits, on the page of workers.

import { panel } from "./dom.js";
import { columns, table } from "./table.js";

const COLUMNS = columns("costs", { reached: { class: "error", wide: true } });
const PAID = ["run", "per_hour", "hour_limit", "day_limit", "run_limit"];

/** A panel, hidden without prices and limits. */
function costs(store) {
  const list = table("Costs", COLUMNS, () => "all");
  const element = panel("What units cost", { hidden: true }, list.element);

  function update() {
    const row = store.status?.spending;
    element.hidden = !row || PAID.every((name) => !row[name]);
    list.update(row ? [row] : []);
  }

  return { element, update };
}

export const extension = { panels: { workers: [costs] } };
