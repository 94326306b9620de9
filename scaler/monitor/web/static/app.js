// Entry point of the page: views, keys, and connection state.

import { clients } from "./clients.js";
import { data } from "./data.js";
import { history } from "./history.js";
import { code, fill, h, href, setText } from "./dom.js";
import { age } from "./format.js";
import { momentOf } from "./past.js";
import { schedulerAddress } from "./notices.js";
import { overview } from "./overview.js";
import { addedPages } from "./panels.js";
import { profile } from "./profile.js";
import { Store } from "./store.js";
import { task, tasks } from "./tasks.js";
import { timeDialog } from "./time.js";
import { worker, workers } from "./workers.js";

/**
 * open(store, place): creates the page. title: menu entry, opened by `key` or else by the number of its position.
 * after: name of the preceding page. menu: for a page without a menu entry, returns the entry to mark.
 */
const OWN = [
  { name: "overview", title: "Overview", open: overview },
  { name: "workers", title: "Workers", open: workers },
  { name: "tasks", title: "Tasks", open: tasks },
  { name: "data", title: "Data", open: data },
  { name: "clients", title: "Clients", open: clients },
  { name: "history", title: "History", open: history, key: "h" },
  { name: "worker", title: "Worker", open: worker, menu: () => "workers" },
  { name: "task", title: "Task", open: task, menu: () => "tasks" },
  { name: "profile", title: "Profile", open: profile, menu: ({ query }) => (query.has("task") ? "tasks" : "clients") },
];
const UPDATE_MS = 250;

const store = new Store();
const at = (id) => document.getElementById(id);
const main = at("main");
let page = null;
let here = null;
let paused = false;
let changes = new Set();
let drawnAt = -Infinity;
let planned = false;
let saidState = "connecting";
let restarted = 0;
let banner = "";
let pages = OWN;
let menuDrawn = "";
let numbered = [];

/** Parse a fragment such as #/tasks?state=failed or #/task/ID into a view. */
function placeOf(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [name, id = ""] = path.split("/", 2).map(decoded);
  return { name: pages.some((each) => each.name === name) ? name : "overview", id, query: new URLSearchParams(query) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const pageOf = (name) => pages.find((each) => each.name === name);

/** Redraw the menu when the scheduler's extensions change. */
function drawMenu() {
  pages = [...OWN];
  for (const each of addedPages(store)) pages.splice(1 + pages.findIndex(({ name }) => name === each.after), 0, each);
  const shown = pages.filter(({ menu }) => menu === undefined);
  const names = shown.map(({ name }) => name).join();
  if (names === menuDrawn) return false;
  menuDrawn = names;
  numbered = shown.filter(({ key }) => key === undefined).map(({ name }) => name);
  fill(at("menu"), shown.map(({ name, title, key }) =>
    h("a", { href: name === "overview" ? "#/" : `#/${name}`, dataset: { page: name }, "aria-keyshortcuts": key ?? numbered.indexOf(name) + 1 }, title)));
  setText(at("help-pages"), numbered.map((name) => pageOf(name).title).join(", "));
  return true;
}

function go(first) {
  const place = placeOf(location.hash);
  const same = here !== null && here.name === place.name && here.id === place.id;
  here = place;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === (pageOf(place.name).menu?.(place) ?? place.name)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (same && page?.moved) return page.moved(place);
  page?.close();
  page = null;
  if (store.connection === null) return undefined;  // the first event brings the connection
  page = pageOf(place.name).open(store, place);
  fill(main, page.element);
  page.update(["all"]);
  document.title = `${page.title} · Scaler`;
  if (!first) {
    window.scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
  }
  return undefined;
}

function chooseTime() {
  openTime(momentOf(here.query));
}

/** Schedule a redraw, at most every UPDATE_MS, and none while the page is hidden. */
function plan() {
  if (planned) return;
  planned = true;
  setTimeout(() => requestAnimationFrame(() => {
    planned = false;
    drawnAt = performance.now();
    if (paused || page === null || changes.size === 0) return;
    const what = [...changes];
    changes = new Set();
    page.update(what);
  }), Math.max(0, drawnAt + UPDATE_MS - performance.now()));
}

function changed(what) {
  for (const each of what) changes.add(each);
  if (what.includes("all") && drawMenu()) go(true);
  if (page === null && store.connection !== null) go(true);
  if (changes.size > 0) plan();
  drawState();
}

function drawState() {
  const { state } = store;
  const held = paused && (state === "live" || state === "late");
  const lastUpdate = store.age();
  const since = lastUpdate === null ? "" : `, last update ${age(lastUpdate)} ago`;
  const texts = { connecting: "Connecting", live: "Live", late: `No updates for ${age(lastUpdate)}`, away: `No scheduler${since}`, lost: `Connection lost${since}` };
  at("state").dataset.state = held ? "paused" : state;
  setText(at("state-text"), held ? "Paused" : texts[state]);
  document.body.classList.toggle("stale", ["late", "lost", "away"].includes(state));
  if (state !== saidState) {
    if (saidState !== "connecting" || state !== "live") announce({ live: "Reconnected", late: "The scheduler sends no updates", away: "No scheduler answers", lost: "Connection lost", connecting: "Connecting" }[state]);
    saidState = state;
  }
  if (store.restarted !== restarted) {
    restarted = store.restarted;
    announce("The scheduler was restarted");
  }
  drawBanner(state);
  setText(at("about"), store.connection ? `Scaler ${store.connection.version} · ${store.connection.address}` : "");
}

/**
 * Explain across the page why updates are missing and what to do, or warn about a failing disk or missing
 * authentication. Redraws only when the text changes.
 */
function drawBanner(state) {
  const trouble = store.connection?.trouble ?? "";
  const open = store.status?.scheduler.insecure_no_auth ? "open" : "";
  const disks = [store.status?.scheduler.disk_failure, store.status?.storage.disk_failure].filter(Boolean);
  const wanted = state === "away" ? `away ${trouble} ${store.status === null}` : state === "lost" ? "lost" : `${open}${disks.join()}`;
  if (wanted === banner) return;
  banner = wanted;
  at("banner").hidden = wanted === "";
  if (state === "lost") fill(at("banner"), h("p", {}, h("b", {}, "✕ Connection lost."), " The web server does not answer. This page shows the last known state and reconnects automatically."));
  else if (state === "away") {
    const said = trouble || "the scheduler does not answer";
    fill(at("banner"), h("p", {}, h("b", {}, `✕ ${said[0].toUpperCase()}${said.slice(1)}.`), "This page resumes once the scheduler answers."),
      store.status === null && [h("p", {}, "To start a scheduler, run:"), code(`scaler_scheduler ${schedulerAddress(store)}`)]);
  } else fill(at("banner"), disks.map((text) => h("p", {}, h("b", {}, "✕ A disk rejects new data. "), text)), open !== "" && h("p", {}, h("b", {}, "⚠ No authentication."), " The cluster runs with insecure_no_auth: any process that can connect can run code on its workers and read all data, and nothing is encrypted."));
}

function announce(text) {
  setText(at("announce"), text);
}

function pause() {
  paused = !paused;
  at("pause").setAttribute("aria-pressed", String(paused));
  setText(at("pause"), paused ? "Resume" : "Pause");
  announce(paused ? "Updates paused" : "Updates resumed");
  drawState();
  if (!paused) page?.update(["all"]);
}

function pressed(event) {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing) {
    if (event.key === "Escape" && event.target.matches("input, select")) event.target.blur();
    return;
  }
  const number = Number(event.key);
  if (event.key === "?") at("help").showModal();
  else if (event.key === "p") pause();
  else if (event.key === "t") chooseTime();
  else if (event.key === "/" && page?.filter) page.filter.focus();
  else {
    const name = pages.find(({ key }) => key === event.key)?.name ?? numbered[number - 1];
    if (name === undefined) return;
    location.hash = name === "overview" ? "#/" : `#/${name}`;
  }
  event.preventDefault();
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();  // the fragment holds the page's view
  main.focus();
});
at("pause").addEventListener("click", pause);
const openTime = timeDialog(at("time-dialog"), (then) => { location.hash = href(["history"], { at: Math.floor(then) }); });
at("time").addEventListener("click", chooseTime);
addEventListener("keydown", pressed);
addEventListener("hashchange", () => go(false));
drawMenu();
go(true);
store.listen(changed);
