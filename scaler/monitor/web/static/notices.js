// Next steps, shown in place of empty tables.

import { code, h, panel } from "./dom.js";

/** Return the likely address of the scheduler. By default, monitors connect two ports above it. */
export function schedulerAddress(store) {
  const found = /^(tcp:\/\/.*:)(\d+)$/.exec(store.connection?.address ?? "");
  return found && Number(found[2]) > 2 ? `${found[1]}${Number(found[2]) - 2}` : "tcp://127.0.0.1:8516";
}

/** The scheduler's sentence about a cluster without workers, with instructions if nothing can start workers. */
export function noWorkers(store) {
  const text = store.status?.without_workers || "No workers: no worker is listed";
  const end = text.indexOf(": ");
  const notice = nothing(text.slice(0, end), `${text[end + 2].toUpperCase()}${text.slice(end + 3)}.`);
  if (store.status?.totals.managers) return notice;
  return [...notice, h("p", {}, "Start four on this machine, with the scheduler's address:"), code(`scaler_cluster ${schedulerAddress(store)} -n 4`)];
}

export function noManagers(store) {
  return [
    ...nothing("No worker managers", "A manager starts and stops workers as they are needed. Start one for this machine:"),
    code(`scaler_worker_manager baremetal_native ${schedulerAddress(store)} --worker-manager-id local`),
  ];
}

export function noTasks(store) {
  return [
    ...nothing("No tasks yet", "Send a hundred from Python:"),
    code(`from scaler import Client\nwith Client("${schedulerAddress(store)}") as client:\n    print(sum(client.map(abs, range(-100, 0))))`),
  ];
}

/** Instructions for debugging a failed task. */
export function replay(id) {
  return panel("Replay", {}, h("p", {}, "In your own process, with the same arguments, from Python:"), code(`client.replay("${id}", pdb=True)`));
}

export const nothing = (title, text) => [h("h3", {}, title), h("p", {}, text)];

/** A finding: the problem, the advice, and its documentation. */
export const advice = (each) => h("li", { class: "finding" }, h("span", {}, each.text), h("span", {}, h("b", {}, each.advice)), h("span", { class: "reason" }, `See ${each.page}`));
