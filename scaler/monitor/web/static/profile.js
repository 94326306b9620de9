// The profile of a function or task, as a flame graph and as a table.

import { ask, choice, h, href, panel, setText } from "./dom.js";
import { NONE, counted, percent, shortId, span } from "./format.js";
import { flame } from "./flame.js";
import { nothing } from "./notices.js";
import { hottest, since, treeOf } from "./stacks.js";
import { table } from "./table.js";

const AGAIN_MS = 2000;
const FIRST_FRAMES = 20;
const NONE_YET = "A processor samples its main thread ten times a second, and reports every 1 to 5 s. Shorter tasks share a profile per function. To disable profiles, set profile_interval_seconds = 0 for the worker manager.";

/** A link to the flame graph of a function or a task. */
export const profileOf = (query, title) => ({ text: "flame graph", href: href(["profile"], query), title });

const seconds = (name, title, help) => ({ title, help, number: true, rank: 2, show: (row) => span(row[name] / 1e6), by: (row) => row[name] });
const part = (name, title, help) => ({ title, help, number: true, show: (row) => percent(100 * row[name] / row.whole), by: (row) => row[name] });
const FRAMES = [
  { title: "Frame", class: "frame", show: (row) => ({ text: row.frame, title: row.frame }) },
  part("own", "Own share", "Share of the time in which this frame was the innermost"), part("total", "With calls", "Share of the time in this frame and its callees"),
  seconds("own", "Own time", "Time in which this frame was the innermost"), seconds("total", "Time with calls", "Time in this frame and its callees"),
];
const FUNCTIONS = [
  { title: "Function", class: "name", show: (row) => ({ text: row.name || NONE, href: href(["profile"], { function: row.name }), title: row.name }) },
  { title: "Time", help: "Total time of the samples", number: true, show: (row) => span(row.seconds), by: (row) => row.seconds },
  { title: "Hottest frame", class: "frame", show: (row) => ({ text: row.hottest || NONE, title: row.hottest }) },
];

export function profile(store, place) {
  const [task, name] = [place.query.get("task") ?? "", place.query.get("function") ?? ""];
  return task || name ? one(store, task, name) : all();
}

/** Ask now, and every AGAIN_MS while the page is shown. take: processes the answer. */
function asked(path, take, trouble) {
  const asking = new AbortController();
  let askedAt = -Infinity;

  async function load() {
    askedAt = performance.now();
    try {
      take(await ask(path, asking.signal));
      trouble.hidden = true;
    } catch (error) {
      if (asking.signal.aborted) return;
      setText(trouble, error.message);
      trouble.hidden = false;
    }
  }
  const update = (what) => {
    if (what.includes("all") || (what.includes("clock") && performance.now() - askedAt >= AGAIN_MS - 100)) void load();
  };
  return { update, close: () => asking.abort() };
}

function all() {
  const trouble = h("p", { class: "bad", hidden: true });
  const list = table("Functions with samples", FUNCTIONS, (row) => row.name, { empty: nothing("No samples yet", NONE_YET) });
  const element = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Profiles")), trouble, h("div", { class: "panel" }, list.element));
  return { title: "Profiles", element, ...asked("api/profile", ({ functions }) => list.update(functions), trouble) };
}

function one(store, task, name) {
  let found = null;
  let base = null;  // the profile at the time when "from now on" was chosen
  const trouble = h("p", { class: "bad", hidden: true });
  const heading = h("h1", { tabindex: "-1" }, "Profile of ", h("code", {}, name || shortId(task)));
  const said = h("span", { class: "muted", role: "status" }, "Waiting for the scheduler …");
  const times = choice("Samples", [["all", "All samples"], ["new", "From now on"]], "all", (value) => { base = value === "new" ? found : null; draw(); });
  const graph = flame(name || `of task ${shortId(task)}`);
  const frames = table("Hottest frames", FRAMES, (row) => row.frame, { limit: FIRST_FRAMES, empty: nothing("No samples yet", NONE_YET) });
  const graphs = panel("Flame graph", { hidden: true }, graph.element);
  const crumbs = task ? [h("a", { href: href(["tasks"]) }, "Tasks"), " › ", h("a", { href: href(["task", task]) }, shortId(task))] : [h("a", { href: href(["clients"]) }, "Functions")];
  const element = h("div", { class: "page" }, h("p", { class: "crumbs" }, crumbs), h("div", { class: "page-head" }, heading, h("div", { class: "tools" }, said, times)),
    trouble, graphs, panel("Hottest frames", {}, frames.element));
  const asking = asked(`api/profile?${new URLSearchParams(task ? { task } : { function: name })}`, (answer) => { found = answer; draw(); }, trouble);

  function draw() {
    if (found === null) return;
    const shown = base === null ? found : since(found, base);
    const tree = treeOf(shown);
    const of = found.of === "function" && task ? `all tasks of ${found.name}, because this task has no samples` : found.name;
    setText(said, shown.samples ? `${of} · ${counted(shown.samples, "sample")}, ${span(tree.us / 1e6)}` : base === null ? "no samples yet" : "no samples since then yet");
    graphs.hidden = tree.us === 0;
    graph.update(tree);
    frames.update(hottest(tree).map((row) => ({ ...row, whole: tree.us || 1 })));
  }

  return { title: `Profile of ${name || shortId(task)}`, element, update: asking.update, close() { asking.close(); graph.close(); } };
}
