// Panels of the tables that only grow: who did what, and others that extensions declare.

import { h, panel } from "./dom.js";
import { LOGS } from "./schema.js";
import { columns, table } from "./table.js";

const SHOWN = 20;

/** The panels of one page, and a function that takes in what has changed in the store. */
export function notedPanels(store, page) {
  const tables = Object.entries(LOGS).filter(([, log]) => log.page === page).map(([name, log]) => {
    const shown = table(log.title, columns(name), (row) => row, { limit: SHOWN, empty: h("p", {}, log.empty) });
    return { name, shown, element: panel(log.title, {}, shown.element) };
  });
  const update = (what) => {
    for (const { name, shown } of tables) if (what.includes("all") || what.includes(name)) shown.update(store.notes[name]);
  };
  return { elements: tables.map(({ element }) => element), update };
}
