// The dialog for choosing a time.

import { h } from "./dom.js";

const HOUR = 3600;

/**
 * Set up the dialog. choose(at): called with a time in unix seconds. Returns a function that opens the dialog with the
 * time that is shown, or null.
 */
export function timeDialog(dialog, choose) {
  const field = h("input", { type: "datetime-local", id: "time-at", step: "60" });
  const wrong = h("p", { class: "bad", role: "alert", hidden: true }, "Enter a day and time in the past.");
  const shortcuts = [
    ["1 hour ago", () => Date.now() / 1000 - HOUR],
    ["6 hours ago", () => Date.now() / 1000 - 6 * HOUR],
    ["This time yesterday", () => Date.now() / 1000 - 24 * HOUR],
    ["Last 03:00", () => lastNight()],
  ];
  const form = h("form", { on: { submit: taken } }, h("label", { for: "time-at" }, "Day and time"), field, wrong,
    h("div", { class: "tools" }, shortcuts.map(([text, of]) => h("button", { type: "button", on: { click: () => done(of()) } }, text))),
    h("div", { class: "tools" }, h("button", { type: "submit", class: "main" }, "Show"), h("button", { type: "button", on: { click: () => dialog.close() } }, "Close")));
  dialog.append(h("h2", { id: "time-title" }, "Show another time"), form);

  function lastNight() {
    const then = new Date();
    then.setHours(3, 0, 0, 0);
    if (then > new Date()) then.setDate(then.getDate() - 1);
    return then / 1000;
  }

  function taken(event) {
    event.preventDefault();
    const at = new Date(field.value).getTime() / 1000;
    wrong.hidden = at > 0 && at <= Date.now() / 1000;
    if (wrong.hidden) done(at);
    else field.focus();
  }

  function done(at) {
    dialog.close();
    choose(at);
  }

  return (at) => {
    const shown = new Date((at ?? Date.now() / 1000) * 1000);
    field.value = new Date(shown - shown.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
    wrong.hidden = true;
    dialog.showModal();
    field.focus();
  };
}
