// Positions of the bars in the timeline. Pure.

const ROW = 9;
const ONLY_ROW = 15;
export const GAP = 8;
export const AXIS = 24;
const MAX_ROWS = 32;
const NEAR_PIXELS = 3;
const FINEST = 1 / 1000;

/**
 * Bars that overlap get rows of their own, unless that is by less than can be seen: ends are known to some milliseconds
 * only, and tasks follow each other closely. Returns lanes with their place and height, and how high they are together.
 */
export function laidOut(timeline) {
  const lanes = [...timeline.lanes].sort((a, b) => Number(a.gone) - Number(b.gone) || a.manager.localeCompare(b.manager) || a.worker.localeCompare(b.worker, "en", { numeric: true }) || a.lane - b.lane);
  const unseen = (timeline.at - timeline.since) * FINEST;
  let top = 0;
  const placed = lanes.map((lane) => {
    const ends = [];
    const bars = lane.bars.map(([start, end, task, name, state]) => {
      let row = ends.findIndex((free) => free <= start + Math.min(unseen, (end - start) / 2) + 1e-6);
      if (row < 0) row = ends.length < MAX_ROWS ? ends.length : MAX_ROWS - 1;
      ends[row] = Math.max(end, ends[row] ?? end);
      return { start, end, task, function: timeline.functions[name], state: timeline.states[state], row };
    });
    const row = ends.length > 1 ? ROW : ONLY_ROW;
    const each = { worker: lane.worker, manager: lane.manager, gone: lane.gone, bars, top, row, height: Math.max(1, ends.length) * row + GAP };
    top += each.height;
    return each;
  });
  return { lanes: placed, height: top };
}

/** The first lane that ends below a height. */
export function laneAt(lanes, y) {
  let low = 0;
  let high = lanes.length;
  while (low < high) {
    const half = (low + high) >> 1;
    if (lanes[half].top + lanes[half].height <= y) low = half + 1;
    else high = half;
  }
  return low;
}

/** The bar at a position in a lane, or the nearest within a few pixels; -1 for none. */
export function barAt(lane, y, x, xOf) {
  const row = Math.floor((y - lane.top - GAP / 2) / lane.row);
  let best = -1;
  let distance = NEAR_PIXELS + 0.01;
  lane.bars.forEach((bar, place) => {
    if (bar.row !== row) return;
    const away = Math.max(xOf(bar.start) - x, x - xOf(bar.end), 0);
    if (away < distance) [best, distance] = [place, away];
  });
  return best;
}

/** The bar whose middle is nearest to a time; -1 for an empty lane. */
export function nearest(lane, at) {
  let best = -1;
  let distance = Infinity;
  lane.bars.forEach((bar, place) => {
    const away = Math.abs((bar.start + bar.end) / 2 - at);
    if (away < distance) [best, distance] = [place, away];
  });
  return best;
}

/** Times of the axis: whole steps, as many as fit. */
export function ticks(since, until, width) {
  const step = [5, 10, 15, 30, 60, 120, 300, 600].find((each) => ((until - since) / each) * 72 <= width) ?? 900;
  const found = [];
  for (let at = Math.ceil(since / step) * step; at <= until; at += step) found.push(at);
  return found;
}
