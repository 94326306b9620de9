// Scaling: costs by payer, and decisions with their reasons.

import { fill, h, panel, setText } from "./dom.js";
import { age, clock, counted, money, span } from "./format.js";
import { nothing } from "./notices.js";
import { columns, table } from "./table.js";

const MAX_DECISIONS = 20;
const COSTS = columns("costs", { function: { class: "name" }, client: { class: "name" } });
const COST = COSTS.findIndex((column) => column.name === "cost");

/** Costs, and the next spend limit to be reached. Empty without costs. */
function sums(row) {
  if (!(row.run || row.per_hour)) return "";
  const text = `${money(row.per_hour)} per hour now · ${money(row.hour)} in the last hour · ${money(row.today)} today · ${money(row.run)} in this run`;
  return row.forecast > 0 ? `${text} · to come for the present tasks: ${money(row.forecast)}` : text;
}

function limits(row) {
  const known = ["hour", "day", "run"].filter((period) => row[`${period}_limit`] > 0);
  if (!known.length) return "There is no spend_limit.";
  const text = known.map((period) => `${money(row[period])} of ${money(row[`${period}_limit`])} per ${period}`).join(", ");
  if (row.reached) return row.reached;
  return row.limit_seconds === null ? `spend_limit: ${text}; none is reached at the present cost.` : `spend_limit: ${text}; at the present cost that per ${row.next_limit} is reached in ${span(row.limit_seconds)}.`;
}

function scaling(store) {
  const spent = h("p", {});
  const limit = h("p", { class: "muted" });
  const decisions = h("ol", { class: "notes" });
  const costs = table("Costs", COSTS, (row) => row.id, { sort: [COST, -1], empty: nothing("Nothing has cost anything", "Set unit_price of a worker manager whose price is not known.") });
  const total = h("span", { class: "muted" });
  const element = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Scaling")),
    panel("What it costs", { extra: total }, spent, limit, costs.element),
    panel("Decisions", {}, decisions));

  function update(what) {
    const has = (name) => what.includes("all") || what.includes(name);
    if (has("status") && store.status) {
      setText(spent, sums(store.status.spending) || "Units have cost nothing in this run.");
      setText(limit, limits(store.status.spending));
      limit.className = store.status.spending.reached ? "bad" : "muted";
    }
    if (has("costs")) {
      const rows = store.rows("costs");
      const all = store.status?.totals.costs ?? rows.length;
      setText(total, rows.length < all ? `the largest ${rows.length} of ${counted(all, "share")}` : "");
      costs.update(rows);
    }
    if (has("decisions")) {
      const found = store.notes.decisions.slice(0, MAX_DECISIONS);
      fill(decisions, found.length === 0 ? h("li", { class: "empty" }, nothing("None yet", "They appear when a manager has to start or stop workers.")) : found.map(line));
    }
  }

  function line(each) {
    const units = `${counted(each.units, "unit")}${each.draining ? `, ${each.draining} draining` : ""}`;
    return h("li", {}, h("time", { title: `${age(store.now() - each.at)} ago` }, clock(each.at)), h("span", {}, h("b", {}, each.manager || "–"), ` → ${units}`), h("span", { class: "reason" }, each.reason));
  }

  return { title: "Scaling", element, update, close() {} };
}

export const extension = { pages: [{ name: "scaling", title: "Scaling", after: "clients", open: scaling }] };
