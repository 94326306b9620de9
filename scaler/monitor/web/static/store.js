// What the server has told, kept as one picture, and whether it still tells anything.

const SILENT_MS = 15_000;
const AGAIN_MS = 2_000;
const SERIES_SECONDS = 1800;
const MAX_POINTS = 3700;
const MAX_NOTES = 100;
const KEYS = { workers: "id", clients: "id", managers: "id", functions: "name" };

export class Store {
  constructor() {
    this.connection = null;
    this.status = null;
    this.tables = Object.fromEntries(Object.keys(KEYS).map((name) => [name, new Map()]));
    this.tasks = new Map();  // by id, the newest last
    this.leftOut = 0;
    this.decisions = [];  // the newest first, as incidents
    this.incidents = [];
    this.series = { at: [] };
    this.heardAt = null;  // of this machine's clock that knows no leaps, in ms
    this.open = false;
    this._failed = false;
    this.restarted = 0;  // how many new schedulers were seen
    this.onChange = () => {};
    this._source = null;
    this._retry = null;
  }

  /** Begin to listen. onChange(what) gets the names of what has changed. */
  listen(onChange) {
    this.onChange = onChange;
    this._connect();
    setInterval(() => this._check(), 1000);
  }

  rows(name) {
    return [...this.tables[name].values()];
  }

  /** The tasks heard of last, the newest first. */
  lastTasks() {
    return [...this.tasks.values()].reverse();
  }

  /** Now, in seconds of the scheduler's clock. */
  now() {
    return (this.status?.at || Date.now() / 1000) + (this.heardAt === null ? 0 : Math.min(2, this.silence()));
  }

  /** Seconds since anything was heard. */
  silence() {
    return this.heardAt === null ? 0 : (performance.now() - this.heardAt) / 1000;
  }

  /** connecting, live, away (the server is there, the scheduler is not) or lost. */
  get state() {
    if (this.connection === null) return this._failed ? "lost" : "connecting";
    if (!this.open) return "lost";
    return this.connection.connected ? "live" : "away";
  }

  /** How old the newest state of the scheduler is, in seconds; null before there is one. */
  age() {
    const age = this.connection?.age_seconds;
    return typeof age === "number" ? age + this.silence() : null;
  }

  _connect() {
    clearTimeout(this._retry);
    this._source?.close();
    const source = new EventSource("events");
    this._source = source;
    source.addEventListener("snapshot", (event) => this._heard(source, () => this._replace(JSON.parse(event.data))));
    source.addEventListener("delta", (event) => this._heard(source, () => this._change(JSON.parse(event.data))));
    source.addEventListener("error", () => {
      if (source !== this._source) return;
      this._failed = true;
      this.open = false;
      // A browser tries again by itself after a broken connection, and not at all after an answer that is an error.
      if (source.readyState === EventSource.CLOSED) this._retry = setTimeout(() => this._connect(), AGAIN_MS);
      this.onChange(["connection"]);
    });
  }

  _check() {
    if (this.open && this.silence() * 1000 > SILENT_MS) {
      this.open = false;
      this._connect();
    }
    this.onChange(["clock"]);
  }

  _heard(source, take) {
    if (source !== this._source) return;
    this.heardAt = performance.now();
    this.open = true;
    this.onChange(["connection", ...take()]);
  }

  _replace(told) {
    const before = this.connection?.incarnation;
    this.connection = told.connection;
    if (before && told.connection.incarnation && before !== told.connection.incarnation) this.restarted += 1;
    this.status = told.connection.age_seconds === null ? null : told.status;
    for (const [name, key] of Object.entries(KEYS)) this.tables[name] = new Map(told[name].map((row) => [row[key], row]));
    this.tasks = new Map(told.tasks.reverse().map((task) => [task.id, task]));
    this.decisions = told.decisions;
    this.incidents = told.incidents;
    this.series = told.series;
    return ["all"];
  }

  _change(told) {
    this.connection = told.connection;
    const { status, tasks, decisions, incidents, series } = told;
    if (status) this.status = status;
    for (const [name, key] of Object.entries(KEYS)) if (told[name]) this._rows(this.tables[name], key, told[name]);
    if (tasks) this._tasks(tasks);
    if (decisions) this.decisions = [...decisions.reverse(), ...this.decisions].slice(0, MAX_NOTES);
    if (incidents) this.incidents = [...incidents.reverse(), ...this.incidents].slice(0, MAX_NOTES);
    if (series) this._points(series);
    return Object.keys(told);
  }

  _rows(table, key, { changed, gone }) {
    for (const row of changed) table.set(row[key], { ...table.get(row[key]), ...row });
    for (const name of gone) table.delete(name);
  }

  _tasks({ rows, left_out: leftOut }) {
    this.leftOut += leftOut;
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
    // Not point by point: that would move all the others each time.
    if (old > 60) for (const column of Object.values(this.series)) column.splice(0, old);
  }
}
