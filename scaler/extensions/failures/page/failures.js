// Failures: recent failed tasks grouped by function and message, and the tasks of one group.

import { ask, fill, h, href, setText } from "./dom.js";
import { count } from "./format.js";
import { nothing, replay } from "./notices.js";
import { columns, table } from "./table.js";
import { TASKS } from "./tasks.js";

const AGAIN_MS = 1000;
const LIMIT = 1000;
const FAILURES = columns("failures", {
  text: { class: "error", show: (group) => ({ text: group.text, href: href(["failures", group.key]), title: group.text }) },
  function: { class: "name" },
});

function failures(store, place) {
  const asking = new AbortController();
  const one = place.id !== "";
  const list = one
    ? table("Failed tasks", TASKS, (task) => task.id, { limit: LIMIT })
    : table("Failures", FAILURES, (group) => group.key, { empty: nothing("No task has failed", "The last 1,000 failed tasks stay here, however many tasks succeed later.") });
  const heading = h("h1", { tabindex: "-1" }, "Failures");
  const counted = h("span", { class: "muted", role: "status" });
  const trouble = h("p", { class: "bad", hidden: true });
  const how = h("div");
  const element = h("div", { class: "page" }, one && h("p", { class: "crumbs" }, h("a", { href: href(["failures"]) }, "Failures")),
    h("div", { class: "page-head" }, heading, counted), trouble, how, h("div", { class: "panel" }, list.element));
  let askedAt = -Infinity;
  let waits = false;
  let newest = "";

  function update(what) {
    if (what.includes("all") || what.includes("tasks")) void load();
  }

  async function load() {
    if (waits) return;
    waits = true;
    await new Promise((done) => setTimeout(done, Math.max(0, askedAt + AGAIN_MS - performance.now())));
    askedAt = performance.now();
    waits = false;
    try {
      const found = await ask(`api/failures?limit=${LIMIT}`, asking.signal);
      if (one) draw(found.failures.find((group) => group.key === place.id), (await ask(`api/tasks?failure=${encodeURIComponent(place.id)}&limit=${LIMIT}`, asking.signal)).tasks);
      else {
        list.update(found.failures);
        setText(counted, found.kept ? `the last ${count(found.kept)} failed tasks, the newest first` : "");
      }
      trouble.hidden = true;
    } catch (error) {
      if (asking.signal.aborted) return;
      setText(trouble, error.message);
      trouble.hidden = false;
    }
  }

  function draw(group, tasks) {
    list.update(tasks);
    setText(heading, group ? `${count(group.times)} × ${group.text}` : "These failures are no longer kept");
    setText(counted, group ? `in ${group.function}` : "");
    if (group && group.task !== newest) fill(how, replay(group.task));
    newest = group?.task ?? "";
  }

  return { title: "Failures", element, update, close() { asking.abort(); } };
}

export const extension = { pages: [{ name: "failures", title: "Failures", after: "data", open: failures }] };
