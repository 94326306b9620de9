// A lane per processor and a bar per task. Draws only the visible section.

import { colour, onTheme } from "./charts.js";
import { ask, choice, fill, h, href, setText } from "./dom.js";
import { bytes, clock, count, counted, glyph, middle, percent, precise, shortId, span, stateName } from "./format.js";
import { AXIS, GAP, bounded, laidOut, laneAt, placeAt, ticks, zoomed } from "./lanes.js";
import { noTasks, noWorkers, nothing } from "./notices.js";

const COLOURS = 8;  // for functions; the last, neutral colour is shared by all further functions
const AGAIN_MS = 2000;
const SETTLED_MS = 80;
const STEP = 2;  // zoom factor of a key or button
const START = { span: 300, until: null };
const NARROW = 620;
const NEAR_PIXELS = 3;  // tolerance around the pointer

function timeline(store) {
  let view = START;
  let shown = { at: 0, lanes: [], height: 0 };
  let chosen = null;  // task id
  let light = null;  // highlighted function
  let askedAt = -Infinity;
  let asking = null;
  let frame = 0;
  let settling = null;
  const pointers = new Map();  // pressed pointers and their last positions
  let dragged = 0;  // pixels since the first pointer was pressed
  let theme = themed();
  const places = new Map();  // function -> index of its colour, kept while the page is open

  const canvas = h("canvas", { tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-label": "Timeline of tasks by worker. Arrow keys select tasks, Enter opens one, plus and minus zoom, Shift with arrow keys moves, and 0 resets the view.", "aria-describedby": "chosen-task" });
  const spacer = h("div");
  const tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const scroller = h("div", { class: "lanes", tabindex: "-1" }, canvas, spacer);
  const legend = h("div", { class: "timeline-legend" });
  const functions = h("div", { class: "functions", role: "group", "aria-label": "Functions: choose one to highlight it" });
  const details = h("p", { class: "details", id: "chosen-task", "aria-live": "polite" }, "Point at a bar, or use the arrow keys, to see its task.");
  const empty = h("div", { class: "empty panel", hidden: true });
  const old = h("span");
  const part = h("span", { class: "part" });
  const button = (text, title, click) => h("button", { type: "button", title, on: { click } }, text);
  const ranges = choice("Time shown", [[60, "1 min"], [300, "5 min"], [1800, "30 min"], [21_600, "6 h"]], START.span, (span) => look({ span, until: null }));
  const download = h("a", { class: "button", download: "scaler-trace.json" }, "Download trace");
  const element = h("div", { class: "page timeline" },
    h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Timeline"),
      h("div", { class: "tools" }, button("−", "Zoom out (−)", () => zoom(STEP)), button("+", "Zoom in (+)", () => zoom(1 / STEP)), button("Reset", "The last five minutes (0)", () => look(START)), ranges, download)),
    legend, h("div", { class: "panel lanes-panel" }, scroller, details), h("p", { class: "muted" }, part, old), empty, tip);
  fill(legend, functions, h("div", { class: "marks" },
    mark("inputs", "gets inputs"), mark("running", "running"), mark("done", "done"), mark("failed", "✕ failed"), mark("cancelled", "⊘ cancelled")));

  function mark(state, text) {
    return h("span", {}, h("i", { class: `sample sample-${state}`, "aria-hidden": "true" }), text);
  }

  /** Show another section: at once with the present data, then with the server's answer. */
  function look(wanted) {
    view = wanted;
    for (const each of ranges.children) each.setAttribute("aria-pressed", String(view.until === null && each.dataset.value === String(view.span)));
    download.setAttribute("href", `api/trace?seconds=${Math.min(86_400, Math.max(1, Math.ceil(shown.at - since())))}`);
    asking?.abort();
    asking = null;
    clearTimeout(settling);
    settling = setTimeout(() => { askedAt = -Infinity; void load(); }, shown.at ? SETTLED_MS : 0);
    redraw();
  }

  const until = () => view.until ?? shown.at;
  const since = () => until() - view.span;
  const zoom = (factor, at = until() - view.span / 2) => look(zoomed(view, shown.at, factor, at));
  const pan = (pixels) => look(bounded(view.span, until() - (pixels / plot()) * view.span, shown.at));

  function themed() {
    return {
      colours: Array.from({ length: COLOURS + 1 }, (_none, place) => colour(`f${place}`)),
      text: colour("text"), muted: colour("muted"), grid: colour("grid"), panel: colour("panel"), bad: colour("bad"), stripe: colour("stripe"),
    };
  }

  function update(what) {
    if (view.until !== null && view.until < shown.at - 60) return;  // a past section no longer changes
    if (what.includes("all") || what.includes("clock") || what.includes("tasks") || what.includes("workers")) void load();
  }

  async function load() {
    if (asking !== null || performance.now() - askedAt < AGAIN_MS - 100) return;
    const mine = (asking = new AbortController());
    askedAt = performance.now();
    try {
      // Request half a span more on both sides, for drawing while the user moves the timeline.
      const times = view.until === null ? `seconds=${Math.min(86_400, Math.max(1, view.span * 1.5))}` : `since=${since() - view.span / 2}&until=${until() + view.span / 2}`;
      take(await ask(`api/timeline?${times}`, mine.signal));
    } catch {
      return;  // the page already shows the connection state; the next interval retries
    } finally {
      if (asking === mine) asking = null;
    }
  }

  function take(found) {
    shown = { at: found.at, ...laidOut(found) };
    const seen = new Map();
    for (const { bars } of shown.lanes) for (const bar of bars) seen.set(bar.function, (seen.get(bar.function) ?? 0) + 1);
    for (const [name] of [...seen].sort((left, right) => right[1] - left[1])) if (!places.has(name)) places.set(name, Math.min(places.size, COLOURS));
    drawLegend(seen);
    const none = shown.lanes.length === 0;
    const idle = !none && shown.lanes.every((lane) => lane.bars.length === 0);
    if (none || idle) fill(empty, idle ? (store.tasks.size ? nothing("No tasks in this period", "Choose a longer period, or wait for the next task.") : noTasks(store)) : noWorkers(store));
    empty.hidden = !(none || idle);
    scroller.parentElement.hidden = none;
    const leftOut = store.status?.tasks_left_out ?? 0;
    setText(old, `${found.oldest !== null && found.oldest > since() + 1 ? `No tasks are kept from before ${clock(found.oldest)}. ` : ""}${leftOut > 0 ? `${counted(leftOut, "task")} ended too quickly to be listed and ${leftOut === 1 ? "has" : "have"} no bar.` : ""}`);
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
  const plot = () => Math.max(100, scroller.clientWidth - labels() - 6);
  const xOf = (at) => labels() + ((at - since()) / view.span) * plot();
  const timeAt = (x) => since() + ((x - labels()) / plot()) * view.span;

  function redraw() {
    frame ||= requestAnimationFrame(() => { frame = 0; draw(); });
  }

  function draw() {
    const width = scroller.clientWidth;
    if (width === 0 || shown.at === 0) return;
    const total = AXIS + shown.height;
    setText(part, view.until === null ? `The last ${span(view.span)}. ` : `${span(view.span)} until ${precise(view.until, 3)}. `);
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
    const { times, digits } = ticks(since(), until(), plot());
    for (const at of times) {
      const x = Math.round(xOf(at)) + 0.5;
      to.strokeStyle = theme.grid;
      to.beginPath();
      to.moveTo(x, AXIS - 4);
      to.lineTo(x, height);
      to.globalCompositeOperation = "destination-over";
      to.stroke();
      to.globalCompositeOperation = "source-over";
      to.fillStyle = theme.muted;
      if (x > labels() + 16 && x < width - 20) to.fillText(digits ? precise(at, digits).slice(-3 - digits) : clock(at).slice(-8), x, AXIS / 2 - 1);
    }
    to.textAlign = "left";
    to.fillStyle = theme.muted;
    to.fillText(counted(shown.lanes.length, "lane"), 8, AXIS / 2 - 1);
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
    const name = `${lane.gone ? "✕ " : ""}${lane.worker} · ${lane.lane}`;
    const share = Math.min(1, (labels() - 16) / to.measureText(name).width);
    to.fillText(middle(name, Math.floor(name.length * share)), 8, lane.top + lane.height / 2, labels() - 16);
    to.save();
    to.beginPath();
    to.rect(labels(), lane.top, width - labels(), lane.height);
    to.clip();
    const [first, last] = [since(), until()];
    for (const bar of lane.bars) if (bar.end >= first && bar.start <= last) drawBar(to, lane, bar);
    to.restore();
  }

  function drawBar(to, lane, bar) {
    const begin = Math.max(xOf(bar.start), labels() - 9);
    const x = Math.max(begin, Math.min(xOf(bar.start + bar.inputs), xOf(bar.end) - 1.5));
    const y = lane.top + GAP / 2;
    const width = Math.max(1.5, Math.min(xOf(bar.end), scroller.clientWidth + 9) - x - 0.5);
    const height = lane.height - GAP - 1;
    const fillColour = theme.colours[places.get(bar.function) ?? COLOURS];
    to.globalAlpha = light !== null && bar.function !== light ? 0.15 : 1;
    to.fillStyle = to.strokeStyle = fillColour;
    if (x > begin) {  // thin until the inputs were loaded
      const thin = Math.max(2, Math.round(height / 4));
      to.fillRect(begin, y + (height - thin) / 2, x - begin, thin);
    }
    if (bar.state === "running") {
      const dim = to.globalAlpha;
      to.globalAlpha = dim * 0.5;
      to.fillRect(x, y, width, height);
      to.globalAlpha = dim;
      to.fillRect(x + width - 2, y, 2, height);
    } else if (bar.state === "cancelled") {
      // Hollow, with a line through the middle.
      to.strokeRect(x + 0.5, y + 0.5, Math.max(1, width - 1), height - 1);
      to.fillRect(x, y + height / 2 - 0.5, width, 1);
    } else {
      to.fillRect(x, y, width, height);
      if (bar.failed) drawFailure(to, x, y + height * (1 - bar.failed), width, height * bar.failed);
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

  /** A frame and stripes, or plain red where stripes do not fit. */
  function drawFailure(to, x, y, width, height) {
    to.strokeStyle = to.fillStyle = theme.bad;
    if (width < 6 || height < 6) {
      to.fillRect(x, y, width, height);
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

  // -- finding tasks

  function find(event) {
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top - AXIS + scroller.scrollTop;
    if (x < labels() || event.clientY - box.top < AXIS) return null;
    const lane = shown.lanes[laneAt(shown.lanes, y)];
    if (!lane) return null;
    const near = (NEAR_PIXELS / plot()) * view.span;
    const bar = lane.bars[placeAt(lane.bars, timeAt(x), near)];
    return bar ? { lane, bar } : null;
  }

  const facts = ({ lane, bar }) => [`${bar.function || "unnamed"}`, `${glyph(bar.state)} ${stateName(bar.state)}`, ...(bar.failed && bar.failed < 1 ? [`${percent(100 * bar.failed)} of its items failed`] : []), span(bar.end - bar.start), ...(bar.inputs > 0 ? [`inputs: ${bytes(bar.size)} in ${span(bar.inputs)}`] : []), `${precise(bar.start)} on ${lane.worker}, lane ${lane.lane}`, `task ${shortId(bar.task)}`];

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
    if (bar.end < since() || bar.start > until()) look(bounded(view.span, (bar.start + bar.end + view.span) / 2, shown.at));
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
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const move = event.shiftKey && { ArrowLeft: 0.25, ArrowRight: -0.25 }[event.key];
    const factor = { "+": 1 / STEP, "=": 1 / STEP, "-": STEP }[event.key];
    if (move || factor || event.key === "0") {
      event.preventDefault();
      if (move) pan(move * plot());
      else if (factor) zoom(factor);
      else look(START);
    } else if (event.key === "Enter" && here) location.hash = href(["task", chosen]);
    else if (event.key === "Escape") {
      chosen = null;
      redraw();
    } else if (step) {
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
    const middleTime = (Math.max(bars[place].start, since()) + bars[place].end) / 2;
    for (let other = number + down; other >= 0 && other < shown.lanes.length; other += down) {
      if (shown.lanes[other].bars.length > 0) return void choose(shown.lanes[other], placeAt(shown.lanes[other].bars, middleTime));
    }
  }

  // -- moving through time

  const inside = (event) => event.clientX - canvas.getBoundingClientRect().left;

  function moved(event) {
    const before = pointers.get(event.pointerId);
    if (!before) return hover(event);
    pointers.set(event.pointerId, event);
    const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
    dragged += Math.abs(dx) + Math.abs(dy);
    tip.hidden = true;
    const other = [...pointers.values()].find((each) => each !== event);
    if (other) {
      const apart = (each) => Math.max(20, Math.abs(each.clientX - other.clientX));
      zoom(apart(before) / apart(event), timeAt((inside(event) + inside(other)) / 2));
    } else {
      pan(dx);
      scroller.scrollTop -= dy;
    }
    return undefined;
  }

  function wheeled(event) {
    if (inside(event) < labels()) return;  // the lanes scroll there
    event.preventDefault();
    tip.hidden = true;
    const pixels = event.deltaMode === 1 ? 16 : 1;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(-(event.deltaX || event.deltaY) * pixels);
    else zoom(Math.exp(event.deltaY * pixels * (event.ctrlKey ? 0.01 : 0.002)), timeAt(inside(event)));
  }

  canvas.addEventListener("wheel", wheeled, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (pointers.size === 0) dragged = 0;
    pointers.set(event.pointerId, event);
    canvas.setPointerCapture(event.pointerId);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointermove", moved);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => {
    const found = dragged < 4 ? find(event) : null;
    if (found !== null) location.hash = href(["task", found.bar.task]);
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
    clearTimeout(settling);
    window.removeEventListener("resize", redraw);
  }
  look(START);
  return { title: "Timeline", element, update, close };
}

export const extension = { pages: [{ name: "timeline", title: "Timeline", after: "workers", open: timeline }] };
