// A lane per worker, a bar per task. Only the visible part is drawn.

import { colour, onTheme } from "./charts.js";
import { ask, choice, fill, h, href, setText } from "./dom.js";
import { clock, count, counted, glyph, middle, shortId, span, stateName } from "./format.js";
import { AXIS, GAP, barAt, laidOut, laneAt, nearest, ticks } from "./lanes.js";
import { noTasks, noWorkers, nothing } from "./notices.js";

const COLOURS = 8;  // of functions; further ones share the last, neutral one
const AGAIN_MS = 2000;
const NARROW = 620;

export function timeline(store) {
  let seconds = 300;
  let shown = { at: 0, since: 0, lanes: [], height: 0 };
  let chosen = null;  // the id of the task
  let light = null;  // the function that stands out
  let askedAt = -Infinity;
  let asking = null;
  let frame = 0;
  let theme = themed();
  const places = new Map();  // function -> place of its colour, kept while the page is open

  const canvas = h("canvas", { tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-label": "Timeline of tasks by worker. Arrow keys go from task to task, Enter opens one.", "aria-describedby": "chosen-task" });
  const spacer = h("div");
  const tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const scroller = h("div", { class: "lanes", tabindex: "-1" }, canvas, spacer);
  const legend = h("div", { class: "timeline-legend" });
  const functions = h("div", { class: "functions", role: "group", "aria-label": "Functions: choose one to make it stand out" });
  const details = h("p", { class: "details", id: "chosen-task", "aria-live": "polite" }, "Point at a bar, or use the arrow keys, to see its task.");
  const empty = h("div", { class: "empty panel", hidden: true });
  const old = h("p", { class: "muted" });
  const download = h("a", { class: "button", download: "scaler-trace.json" }, "Download trace");
  const element = h("div", { class: "page timeline" },
    h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Timeline"),
      h("div", { class: "tools" }, choice("Time shown", [[300, "5 min"], [600, "10 min"], [1800, "30 min"]], seconds, (value) => { seconds = value; ranged(); }), download)),
    legend, empty, h("div", { class: "panel lanes-panel" }, scroller, details), old, tip);
  fill(legend, functions, h("div", { class: "marks" },
    mark("running", "running"), mark("done", "done"), mark("failed", "✕ failed"), mark("cancelled", "⊘ cancelled")));
  ranged();

  function mark(state, text) {
    return h("span", {}, h("i", { class: `sample sample-${state}`, "aria-hidden": "true" }), text);
  }

  function ranged() {
    download.setAttribute("href", `api/trace?seconds=${seconds}`);
    askedAt = -Infinity;
    asking?.abort();
    asking = null;
    void load();
  }

  function themed() {
    return {
      colours: Array.from({ length: COLOURS + 1 }, (_none, place) => colour(`f${place}`)),
      text: colour("text"), muted: colour("muted"), grid: colour("grid"), panel: colour("panel"), bad: colour("bad"), stripe: colour("stripe"),
    };
  }

  function update(what) {
    if (what.includes("all") || what.includes("clock") || what.includes("tasks") || what.includes("workers")) void load();
  }

  async function load() {
    if (asking !== null || performance.now() - askedAt < AGAIN_MS - 100) return;
    const mine = (asking = new AbortController());
    askedAt = performance.now();
    try {
      const found = await ask(`api/timeline?seconds=${seconds}`, mine.signal);
      take(found);
    } catch {
      return;  // the state of the connection is shown already; it is asked again
    } finally {
      if (asking === mine) asking = null;
    }
  }

  function take(found) {
    shown = { at: found.at, since: found.since, ...laidOut(found) };
    const seen = new Map();
    for (const lane of shown.lanes) for (const bar of lane.bars) seen.set(bar.function, (seen.get(bar.function) ?? 0) + 1);
    for (const [name] of [...seen].sort((left, right) => right[1] - left[1])) if (!places.has(name)) places.set(name, Math.min(places.size, COLOURS));
    drawLegend(seen);
    const none = shown.lanes.length === 0;
    const idle = !none && seen.size === 0;
    if (none || idle) fill(empty, idle ? (store.tasks.size ? nothing("No tasks in this time", "Choose a longer one, or wait for the next task.") : noTasks(store)) : noWorkers(store));
    empty.hidden = !(none || idle);
    scroller.parentElement.hidden = none;
    setText(old, found.oldest !== null && found.oldest > found.since + 1 && store.status?.tasks.ended_total > 0
      ? `The tasks since ${clock(found.oldest)} are remembered: before that, lanes may look empty although tasks ran.` : "");
    redraw();
  }

  function drawLegend(seen) {
    const names = [...places].filter(([name, place]) => place < COLOURS && seen.has(name)).map(([name]) => name);
    const others = [...seen.keys()].filter((name) => places.get(name) >= COLOURS).length;
    const wanted = [...names, others].join("\n");
    if (functions.dataset.shown === wanted) return;
    functions.dataset.shown = wanted;
    fill(functions, names.map((name) => h("button", { type: "button", "aria-pressed": String(light === name), on: { click: (event) => stand(event.currentTarget, name) } },
      h("i", { class: `swatch f${places.get(name)}`, "aria-hidden": "true" }), h("span", {}, name || "unnamed"))),
    others > 0 && h("span", {}, h("i", { class: `swatch f${COLOURS}`, "aria-hidden": "true" }), `${count(others)} more`));
  }

  function stand(button, name) {
    light = light === name ? null : name;
    for (const each of functions.querySelectorAll("button")) each.setAttribute("aria-pressed", String(each === button && light !== null));
    redraw();
  }

  // -- drawing

  const labels = () => (scroller.clientWidth < NARROW ? 88 : 200);
  const xOf = (at) => labels() + ((at - shown.since) / (shown.at - shown.since)) * (scroller.clientWidth - labels() - 6);

  function redraw() {
    frame ||= requestAnimationFrame(() => { frame = 0; draw(); });
  }

  function draw() {
    const width = scroller.clientWidth;
    if (width === 0 || shown.at === 0) return;
    const total = AXIS + shown.height;
    const most = Math.max(220, window.innerHeight - (scroller.getBoundingClientRect().top + window.scrollY) - 118);
    const height = Math.min(total + 2, most);
    const scale = window.devicePixelRatio || 1;
    const wanted = { width: Math.round(width * scale), height: Math.round(height * scale) };
    if (scroller.style.height !== `${height}px`) scroller.style.height = `${height}px`;
    if (canvas.width !== wanted.width || canvas.height !== wanted.height) {
      Object.assign(canvas, wanted);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    spacer.style.height = `${Math.max(0, total - height)}px`;
    const to = canvas.getContext("2d");
    to.setTransform(scale, 0, 0, scale, 0, 0);
    to.clearRect(0, 0, width, height);
    const top = scroller.scrollTop;
    const first = laneAt(shown.lanes, top);
    to.save();
    to.beginPath();
    to.rect(0, AXIS, width, height - AXIS);
    to.clip();
    to.translate(0, AXIS - top);
    for (let place = first; place < shown.lanes.length && shown.lanes[place].top < top + height; place += 1) drawLane(to, shown.lanes[place], place, width);
    to.restore();
    drawAxis(to, width, height);
  }

  function drawAxis(to, width, height) {
    to.font = "11px system-ui, sans-serif";
    to.textBaseline = "middle";
    to.textAlign = "center";
    for (const at of ticks(shown.since, shown.at, width - labels())) {
      const x = Math.round(xOf(at)) + 0.5;
      to.strokeStyle = theme.grid;
      to.beginPath();
      to.moveTo(x, AXIS - 4);
      to.lineTo(x, height);
      to.globalCompositeOperation = "destination-over";
      to.stroke();
      to.globalCompositeOperation = "source-over";
      to.fillStyle = theme.muted;
      if (x > labels() + 16 && x < width - 20) to.fillText(clock(at).slice(-8), x, AXIS / 2 - 1);
    }
    to.textAlign = "left";
    to.fillStyle = theme.muted;
    to.fillText(counted(shown.lanes.length, "worker"), 8, AXIS / 2 - 1);
  }

  function drawLane(to, lane, place, width) {
    if (place % 2) {
      to.fillStyle = theme.stripe;
      to.fillRect(0, lane.top, width, lane.height);
    }
    to.font = "12px system-ui, sans-serif";
    to.textBaseline = "middle";
    to.textAlign = "left";
    to.fillStyle = lane.gone ? theme.muted : theme.text;
    const name = lane.gone ? `✕ ${lane.worker}` : lane.worker;
    const share = Math.min(1, (labels() - 16) / to.measureText(name).width);
    to.fillText(middle(name, Math.floor(name.length * share)), 8, lane.top + lane.height / 2, labels() - 16);
    to.save();
    to.beginPath();
    to.rect(labels(), lane.top, width - labels(), lane.height);
    to.clip();
    for (const bar of lane.bars) if (bar.end >= shown.since) drawBar(to, lane, bar);
    to.restore();
  }

  function drawBar(to, lane, bar) {
    const x = xOf(bar.start);
    const y = lane.top + GAP / 2 + bar.row * lane.row;
    const width = Math.max(1.5, xOf(bar.end) - x - 0.5);
    const height = lane.row - 1;
    const fillColour = theme.colours[places.get(bar.function) ?? COLOURS];
    to.globalAlpha = light !== null && bar.function !== light ? 0.15 : 1;
    to.fillStyle = to.strokeStyle = fillColour;
    if (bar.state === "running") {
      const dim = to.globalAlpha;
      to.globalAlpha = dim * 0.5;
      to.fillRect(x, y, width, height);
      to.globalAlpha = dim;
      to.fillRect(x + width - 2, y, 2, height);
    } else if (bar.state === "cancelled") {
      // Hollow, with a line through its middle.
      to.strokeRect(x + 0.5, y + 0.5, Math.max(1, width - 1), height - 1);
      to.fillRect(x, y + height / 2 - 0.5, width, 1);
    } else {
      to.fillRect(x, y, width, height);
      if (bar.state !== "done") drawFailure(to, x, y, width, height);
    }
    if (bar.task === chosen) {
      to.globalAlpha = 1;
      to.strokeStyle = theme.text;
      to.lineWidth = 2;
      to.strokeRect(x - 2, y - 2, width + 4, height + 4);
      to.lineWidth = 1;
    }
    to.globalAlpha = 1;
  }

  /** A frame and stripes, or a pin where those do not fit. */
  function drawFailure(to, x, y, width, height) {
    to.strokeStyle = to.fillStyle = theme.bad;
    if (width < 6) {
      to.fillRect(x, y - 1, Math.max(2, width), height + 2);
      to.beginPath();
      to.moveTo(x - 3, y - 3);
      to.lineTo(x + width + 3, y - 3);
      to.lineTo(x + width / 2, y + 3);
      to.fill();
      return;
    }
    to.save();
    to.beginPath();
    to.rect(x, y, width, height);
    to.clip();
    to.lineWidth = 2;
    to.beginPath();
    for (let at = x - height; at < x + width; at += 5) {
      to.moveTo(at, y + height);
      to.lineTo(at + height, y);
    }
    to.stroke();
    to.restore();
    to.lineWidth = 1.5;
    to.strokeRect(x + 0.75, y + 0.75, width - 1.5, height - 1.5);
    to.lineWidth = 1;
  }

  // -- looking at tasks

  function find(event) {
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top - AXIS + scroller.scrollTop;
    if (x < labels() || event.clientY - box.top < AXIS) return null;
    const lane = shown.lanes[laneAt(shown.lanes, y)];
    const place = lane ? barAt(lane, y, x, xOf) : -1;
    return place < 0 ? null : { lane, bar: lane.bars[place] };
  }

  const facts = ({ lane, bar }) => [
    `${bar.function || "unnamed"}`, `${glyph(bar.state)} ${stateName(bar.state)}`, span(bar.end - bar.start), `${clock(bar.start)} on ${lane.worker}`, `task ${shortId(bar.task)}`,
  ];

  function hover(event) {
    const found = find(event);
    canvas.classList.toggle("over", found !== null);
    tip.hidden = found === null;
    if (found === null) return;
    const [name, ...rest] = facts(found);
    fill(tip, h("b", {}, name), rest.map((text) => h("span", {}, text)));
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const under = event.clientY + 18 + tip.offsetHeight < window.innerHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${under ? event.clientY + 18 : event.clientY - tip.offsetHeight - 12}px`;
  }

  function choose(lane, place) {
    const bar = lane.bars[place];
    chosen = bar.task;
    setText(details, facts({ lane, bar }).join(" · "));
    if (lane.top < scroller.scrollTop) scroller.scrollTop = lane.top;
    const low = lane.top + lane.height + AXIS - scroller.clientHeight;
    if (low > scroller.scrollTop) scroller.scrollTop = low;
    redraw();
  }

  function where() {
    for (let number = 0; number < shown.lanes.length; number += 1) {
      const place = shown.lanes[number].bars.findIndex((bar) => bar.task === chosen);
      if (place >= 0) return [number, place];
    }
    return null;
  }

  function pressed(event) {
    const here = chosen === null ? null : where();
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] }[event.key];
    if (event.key === "Enter" && here) location.hash = href(["task", chosen]);
    else if (event.key === "Escape") {
      chosen = null;
      redraw();
    } else if (step && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      go(here, step);
    }
  }

  function go(here, [down, right]) {
    if (here === null) {
      const number = shown.lanes.findIndex((lane, place) => lane.bars.length > 0 && place >= laneAt(shown.lanes, scroller.scrollTop));
      if (number >= 0) choose(shown.lanes[number], shown.lanes[number].bars.length - 1);
      return;
    }
    const [number, place] = here;
    const { bars } = shown.lanes[number];
    if (down === 0) {
      choose(shown.lanes[number], Math.min(bars.length - 1, Math.max(0, place + right)));
      return;
    }
    const middleTime = (Math.max(bars[place].start, shown.since) + bars[place].end) / 2;
    for (let other = number + down; other >= 0 && other < shown.lanes.length; other += down) {
      if (shown.lanes[other].bars.length > 0) return void choose(shown.lanes[other], nearest(shown.lanes[other], middleTime));
    }
  }

  canvas.addEventListener("pointermove", hover);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => {
    const found = find(event);
    if (found) location.hash = href(["task", found.bar.task]);
  });
  canvas.addEventListener("keydown", pressed);
  scroller.addEventListener("scroll", () => { tip.hidden = true; redraw(); }, { passive: true });
  window.addEventListener("resize", redraw);
  const sized = new ResizeObserver(redraw);
  sized.observe(scroller);
  const forget = onTheme(() => { theme = themed(); redraw(); });

  function close() {
    asking?.abort();
    sized.disconnect();
    forget();
    cancelAnimationFrame(frame);
    window.removeEventListener("resize", redraw);
  }
  return { title: "Timeline", element, update, close };
}
