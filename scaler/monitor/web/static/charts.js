// Line charts over time.

import uPlot from "./vendor/uPlot.js";
import { h, setText } from "./dom.js";
import { bytes, clock, span } from "./format.js";

const HEIGHT = 156;
const BINARY_STEPS = Array.from({ length: 51 }, (_none, power) => 2 ** power);
const SPOKEN_MS = 10_000;
const GAP_SECONDS = 5;
const MIN_SECONDS = 10;  // minimum width of a window that grows with its data
const DAY = 86_400;
const DATE = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const GAP_FACTOR = 2.5;
const MARKS = { started: "good", ended: "bad", scaling: "violet", moment: "text" };
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Value of a style sheet variable. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Call listener when light or dark mode changes. Returns a function that unsubscribes. */
export function onTheme(listener) {
  dark.addEventListener("change", listener);
  return () => dark.removeEventListener("change", listener);
}

/** Insert an empty point into each gap that is much wider than its neighbours. */
function broken(data) {
  const [at] = data;
  const far = (place) => {
    const seconds = at[place + 1] - at[place];
    return seconds > Math.max(GAP_SECONDS, GAP_FACTOR * Math.max(at[place] - at[place - 1] || 0, at[place + 2] - at[place + 1] || 0));
  };
  const gaps = at.slice(0, -1).map((_at, place) => place).filter(far);
  if (gaps.length === 0) return data;
  const parts = [-1, ...gaps].map((gap, place) => [gap + 1, (gaps[place] ?? at.length - 1) + 1]);
  const join = (column, between) => parts.flatMap(([from, end], place) => [...column.slice(from, end), ...(place < gaps.length ? [between(end)] : [])]);
  return data.map((column, line) => join(column, line === 0 ? (end) => (at[end - 1] + at[end]) / 2 : () => null));
}

/**
 * One chart. lines: [{ name, title, colour (a style sheet variable), dash, fill, least }]; names match the series.
 * Lines with `least` are not in the legend. show(value) -> text. picked(at): called with the time of a click.
 * isWhole: the data already contain gaps.
 */
export function chart(title, lines, show, { picked = null, isWhole = false } = {}) {
  const values = lines.map(() => h("b", {}, "–"));
  const time = h("span", { class: "at" });
  const legend = h("p", { class: "legend" }, lines.map((line, place) => !line.least &&
    h("span", {}, h("i", { class: `line line-${line.colour}${line.dash ? " dashed" : ""}`, "aria-hidden": "true" }), `${line.title} `, values[place])), time);
  const place = h("div", { class: "plot", role: "img", "aria-label": title });
  const element = h("section", { class: "panel chart", "aria-label": title }, h("div", { class: "panel-head" }, h("h2", {}, title), legend), place);
  let plot = null;
  let shown = [0, 1];  // start and end in unix seconds
  const least = show === bytes ? 4 * 2 ** 20 : show === span ? 0.001 : 4;
  let marks = [];  // [{ at, kind }]
  let data = [[], ...lines.map(() => [])];
  let spokenAt = -Infinity;

  function make() {
    plot?.destroy();
    const width = place.clientWidth;
    if (width === 0) return;
    const axis = { stroke: colour("muted"), font: "11px system-ui, sans-serif", grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false } };
    plot = new uPlot({
      width,
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 18, 0, 0],
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      hooks: { setCursor: [(each) => legendOf(each.cursor.idx)], draw: [drawMarks] },
      scales: { x: { range: () => shown }, y: { range: (_plot, _low, high) => [0, Math.max(high * 1.08, least)] } },
      axes: [
        { ...axis, size: 24, space: 58, values: (_plot, splits, _axis, _space, step) => splits.map((at) => clockOf(at, step)) },
        { ...axis, size: 62, space: 32, ...(show === bytes ? { incrs: BINARY_STEPS } : {}), values: (_plot, splits) => splits.map(show) },
      ],
      series: [{}, ...lines.map((line) => ({
        stroke: colour(line.colour),
        width: 1.5,
        dash: line.dash ? [5, 4] : undefined,
        fill: line.fill ? `${colour(line.colour)}22` : undefined,
        points: { show: false },
      }))],
    }, data, place);
    if (picked !== null) plot.over.addEventListener("click", (event) => picked(plot.posToVal(event.offsetX, "x")));
  }

  function drawMarks(each) {
    const { ctx, bbox } = each;
    ctx.save();
    for (const mark of marks) {
      const x = Math.round(each.valToPos(mark.at, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      const isShort = mark.kind === "scaling";
      ctx.fillStyle = colour(MARKS[mark.kind]);
      ctx.fillRect(x, isShort ? bbox.top + bbox.height * 0.88 : bbox.top, mark.kind === "moment" ? 2 * devicePixelRatio : devicePixelRatio, isShort ? bbox.height * 0.12 : bbox.height);
    }
    ctx.restore();
  }

  function legendOf(index) {
    const last = data[0].length - 1;
    const at = index ?? last;
    lines.forEach((_line, each) => setText(values[each], at >= 0 ? show(data[each + 1][at]) : "–"));
    setText(time, index === null || index === undefined ? "" : clock(data[0][index]));
  }

  function update(columns, since, until, newMarks = []) {
    shown = [since, until];
    marks = newMarks;
    const first = columns.at.findIndex((at) => at >= since);
    const cut = (column) => (first < 0 ? [] : (column ?? []).slice(first));
    data = [cut(columns.at), ...lines.map((line) => cut(columns[line.name]))];
    if (!isWhole) data = broken(data);
    // draw the axis even without points
    if (data[0].length === 0) data = [shown, ...lines.map(() => [null, null])];
    if (plot === null) make();
    else plot.setData(data);
    legendOf(plot?.cursor.idx ?? null);
    if (performance.now() - spokenAt < SPOKEN_MS || typeof data[1].at(-1) !== "number") return;
    spokenAt = performance.now();
    const said = lines.map((line, each) => `${line.title} ${show(data[each + 1].at(-1))}, at most ${show(data[each + 1].reduce((most, value) => Math.max(most, value), 0))}`);
    place.setAttribute("aria-label", `${title}. ${said.join("; ")}.`);
  }

  /** Show the last seconds of growing columns, or all data if they are younger. */
  function last(columns, seconds, now) {
    const until = columns.at.at(-1) ?? now;
    update(columns, until - Math.min(seconds, Math.max(MIN_SECONDS, until - (columns.at[0] ?? until))), until);
  }

  const sized = new ResizeObserver(() => {
    if (place.clientWidth === 0) return;
    if (plot === null) make();
    else plot.setSize({ width: place.clientWidth, height: HEIGHT });
  });
  sized.observe(place);
  const forget = onTheme(make);
  return { element, update, last, close() { sized.disconnect(); forget(); plot?.destroy(); } };
}

function clockOf(at, step) {
  const time = new Date(at * 1000);
  const two = (value) => String(value).padStart(2, "0");
  if (step >= DAY) return DATE.format(time);
  const minutes = `${two(time.getHours())}:${two(time.getMinutes())}`;
  return step < 60 ? `${minutes}:${two(time.getSeconds())}` : minutes;
}
