// Data of the page, folded from the server's events, and the connection state.

import { KEYS } from "./schema.js";

const SILENT_MS = 15_000;
const LATE_SECONDS = 2.5;  // the scheduler reports every second by default
const AGAIN_MS = 2_000;
const SERIES_SECONDS = 1800;
const MAX_POINTS = 3700;

/** Reload the page if the session has expired, which shows the login page. */
async function loadLogin() {
  const answer = await fetch("api/status").catch(() => null);
  if (answer?.status === 401) location.reload();
}

export class Store {
  constructor() {
    this.connection = null;
    this.status = null;
    this.tables = Object.fromEntries(Object.keys(KEYS).map((name) => [name, new Map()]));
    this.tasks = new Map();  // by id, newest last
    this.series = { at: [] };
    this.receivedAt = null;  // milliseconds of the monotonic clock
    this.every = 1;  // seconds between the last two states
    this.open = false;
    this._failed = false;
    this.restarted = 0;  // number of new schedulers seen
    this.onChange = () => {};
    this._source = null;
    this._retry = null;
  }

  /** Start to listen. onChange(what): called with the names of the changed data. */
  listen(onChange) {
    this.onChange = onChange;
    const follow = () => this._follow(!document.hidden);
    document.addEventListener("visibilitychange", follow);
    addEventListener("pageshow", follow);
    addEventListener("pagehide", () => this._follow(false));
    follow();
    setInterval(() => this._check(), 1000);
  }

  /** Listen only while the page is visible, because a browser limits itself to six connections per server. */
  _follow(isShown) {
    if (!isShown) {
      clearTimeout(this._retry);
      this._source?.close();
      this._source = null;
    } else if (this._source === null) {
      if (this.receivedAt !== null) this.receivedAt = performance.now();  // ignores the silence while the page was hidden
      this._connect();
    }
  }

  rows(name) {
    return [...this.tables[name].values()];
  }

  /** The latest tasks, newest first. */
  lastTasks() {
    return [...this.tasks.values()].reverse();
  }

  /** The current time in seconds of the scheduler's clock. */
  now() {
    return (this.status?.at || Date.now() / 1000) + (this.receivedAt === null ? 0 : Math.min(2, this.silence()));
  }

  /** Seconds since the last event. */
  silence() {
    return this.receivedAt === null ? 0 : (performance.now() - this.receivedAt) / 1000;
  }

  /**
   * connecting, live, late (the scheduler is connected but silent), away (the scheduler is disconnected), or lost
   * (the web server is unreachable).
   */
  get state() {
    if (this.connection === null) return this._failed ? "lost" : "connecting";
    if (!this.open) return "lost";
    if (!this.connection.connected) return "away";
    return this.age() > LATE_SECONDS * Math.max(1, this.every) ? "late" : "live";
  }

  /** Age of the scheduler's last state in seconds; null before the first state. */
  age() {
    const age = this.connection?.age_seconds;
    return typeof age === "number" ? age + this.silence() : null;
  }

  _connect() {
    clearTimeout(this._retry);
    this._source?.close();
    const source = new EventSource("events");
    this._source = source;
    source.addEventListener("snapshot", (event) => this._received(source, () => this._replace(JSON.parse(event.data))));
    source.addEventListener("delta", (event) => this._received(source, () => this._change(JSON.parse(event.data))));
    source.addEventListener("error", () => {
      if (source !== this._source) return;
      this._failed = true;
      this.open = false;
      // Browsers reconnect automatically after a broken connection, but not after an error response.
      if (source.readyState === EventSource.CLOSED) {
        this._retry = setTimeout(() => this._connect(), AGAIN_MS);
        loadLogin();
      }
      this.onChange(["connection"]);
    });
  }

  _check() {
    if (this._source !== null && this.open && this.silence() * 1000 > SILENT_MS) {
      this.open = false;
      this._connect();
    }
    this.onChange(["clock"]);
  }

  _received(source, take) {
    if (source !== this._source) return;
    this.receivedAt = performance.now();
    this.open = true;
    this.onChange(["connection", ...take()]);
  }

  _replace(received) {
    const before = this.connection?.incarnation;
    this.connection = received.connection;
    if (before && received.connection.incarnation && before !== received.connection.incarnation) this.restarted += 1;
    this.status = received.connection.age_seconds === null ? null : received.status;
    for (const [name, key] of Object.entries(KEYS)) this.tables[name] = new Map(received[name].map((row) => [row[key], row]));
    this.tasks = new Map(received.tasks.reverse().map((task) => [task.id, task]));
    this.series = received.series;
    return ["all"];
  }

  _change(received) {
    this.connection = received.connection;
    const { status, tasks, series } = received;
    if (status) {
      this.every = this.status === null ? 1 : status.at - this.status.at;
      this.status = status;
    }
    for (const [name, key] of Object.entries(KEYS)) if (received[name]) this._rows(this.tables[name], key, received[name]);
    if (tasks) this._tasks(tasks);
    if (series) this._points(series);
    return Object.keys(received);
  }

  _rows(table, key, { changed, gone }) {
    for (const row of changed) table.set(row[key], { ...table.get(row[key]), ...row });
    for (const name of gone) table.delete(name);
  }

  _tasks({ rows }) {
    for (const task of rows) {
      this.tasks.delete(task.id);
      this.tasks.set(task.id, task);
    }
    const most = this.connection.task_rows;
    for (const id of this.tasks.keys()) {
      if (this.tasks.size <= most) break;
      this.tasks.delete(id);
    }
  }

  _points(points) {
    const { at } = this.series;
    const newest = at.length ? at[at.length - 1] : -Infinity;
    points.at.forEach((time, place) => {
      if (time <= newest) return;
      for (const [name, column] of Object.entries(points)) (this.series[name] ??= []).push(column[place]);
    });
    let old = 0;
    while (old < at.length && (at[at.length - 1] - at[old] > SERIES_SECONDS || at.length - old > MAX_POINTS)) old += 1;
    // Remove points in batches, because each removal moves all remaining points.
    if (old > 60) for (const column of Object.values(this.series)) column.splice(0, old);
  }
}
