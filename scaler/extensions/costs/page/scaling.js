// Scaling: costs and limits, and decisions with their reasons.

import { fill, h, panel } from "./dom.js";
import { age, clock, counted } from "./format.js";
import { nothing } from "./notices.js";
import { columns, table } from "./table.js";

const MAX_DECISIONS = 20;
const COSTS = columns("costs", { reached: { class: "error", wide: true } });

function scaling(store) {
  const decisions = h("ol", { class: "notes" });
  const costs = table("Costs", COSTS, () => "all", { empty: nothing("Nothing has cost anything", "Set unit_price of a worker manager whose price is not known.") });
  const element = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Scaling")),
    panel("What it costs", {}, costs.element),
    panel("Decisions", {}, decisions));

  function update(what) {
    const has = (name) => what.includes("all") || what.includes(name);
    if (has("status") && store.status) {
      const { spending } = store.status;
      costs.update(["run", "per_hour", "hour_limit", "day_limit", "run_limit"].some((name) => spending[name] > 0) ? [spending] : []);
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
