// Contributions of extensions: pages, panels on other pages, and tables.

import { ask, h, panel } from "./dom.js";
import { EXTENSIONS } from "./extensions.js";
import { ASKED } from "./schema.js";
import { columns, table } from "./table.js";

const SHOWN = 20;
const AGAIN_MS = 5000;

/** Return whether the scheduler runs an extension. True while unknown. */
function runs(store, name) {
  const known = store.status?.scheduler.extensions ?? null;
  return known === null || known.split(" ").includes(name);
}

/** The pages of the extensions that the scheduler runs. */
export const addedPages = (store) => EXTENSIONS.filter(({ name }) => runs(store, name)).flatMap(({ pages = [] }) => pages);

/** The panels that extensions add to a page, as one element. */
export function addedPanels(store, page, place = { id: "" }) {
  const made = EXTENSIONS.filter(({ name }) => runs(store, name)).flatMap(({ panels = {} }) => panels[page] ?? []).map((make) => make(store, place));
  const asked = Object.entries(ASKED).filter(([, one]) => one.page === page && runs(store, one.extension)).map(([name, one]) => askedFor(name, one));
  const all = [...made, ...asked];
  return {
    elements: all.map(({ element }) => element),
    update(what) { for (const each of all) each.update(what); },
    close() { for (const each of all) each.close?.(); },
  };
}

/** A table that the scheduler is asked for, hidden while empty. */
function askedFor(name, { title }) {
  const asking = new AbortController();
  const shown = table(title, columns(name), (row) => row, { limit: SHOWN });
  const element = panel(title, { hidden: true }, shown.element);
  let askedAt = -Infinity;
  async function load() {
    askedAt = performance.now();
    try {
      const found = await ask(`api/${name}`, asking.signal);
      element.hidden = found[name].length === 0;
      shown.update(found[name]);
    } catch {
      // the page already shows the connection state; the next interval retries
    }
  }
  const update = (what) => { if (what.includes("all") || (what.includes("clock") && performance.now() - askedAt >= AGAIN_MS - 100)) void load(); };
  return { element, update, close: () => asking.abort() };
}
