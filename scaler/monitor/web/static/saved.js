// A report: this page with the server's answers in one file that opens without a server.

const element = document.getElementById("saved");

/** Data of the report; null on a page from a server. */
export const SAVED = element === null ? null : JSON.parse(element.textContent);

/** Answer an API path from the report. Throws an Error as `ask` does. */
export function answered(path) {
  const { pathname, searchParams } = new URL(path, "http://report");
  const [, , name, id = "", part = ""] = pathname.split("/").map(decodeURIComponent);
  if (name === "tasks" && part) return answerOfTask(id, part);
  if (name === "tasks" && id) return { task: SAVED.tasks.find((task) => task.id === id) ?? missing("This task is not in the report") };
  if (name === "tasks") return { tasks: found(searchParams), kept: SAVED.tasks.length };
  if (Object.hasOwn(SAVED.answers, name)) return SAVED.answers[name];
  if (name === "findings" || name === "network") return SAVED[name];
  if (name === "profile") return (searchParams.has("task") ? null : SAVED.profiles[searchParams.get("function") ?? ""]) ?? missing("The report has profiles of functions only");
  if (name === "logs") return { logs: SAVED.workerLogs.logs.filter((row) => !searchParams.get("worker") || row.worker_id === searchParams.get("worker")) };
  if (name === "series") return SAVED.series;
  if (name === "history") return SAVED.history ?? missing("This report has no history");
  return missing("This is not in the report");
}

function missing(text) {
  throw Object.assign(new Error(text), { status: 404 });
}

function answerOfTask(id, part) {
  return SAVED[part === "log" ? "logs" : "explained"][id] ?? missing("The report has this of the last failed tasks only.");
}

function found(wanted) {
  const state = wanted.get("state");
  const search = wanted.get("search")?.toLowerCase();
  return SAVED.tasks.filter((task) => (!state || task.state === state || (state === "failed" && task.failed))
    && ["function", "worker", "client"].every((name) => !wanted.get(name) || task[name] === wanted.get(name))
    && Object.entries(SAVED.keys).every(([name, of]) => !wanted.get(name) || of[task.id] === wanted.get(name))
    && (!search || [task.id, task.function, task.client, task.worker, task.state, task.text].join("\n").toLowerCase().includes(search)))
    .slice(0, Number(wanted.get("limit")));
}
