// Positions in the timeline, and the visible section. Pure.

const ROW = 15;
export const GAP = 8;
export const AXIS = 24;
const LABEL_PIXELS = 80;
const WHOLE_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600];
const SHORTEST = 5e-5;
const LONGEST = 86_400;

/** Return a lane with its positions for each processor. Bars of a lane never overlap. */
export function laidOut(timeline) {
  const { functions, states } = timeline;
  const lanes = [...timeline.lanes].sort((a, b) => Number(a.gone) - Number(b.gone) || a.manager.localeCompare(b.manager) || a.worker.localeCompare(b.worker, "en", { numeric: true }) || a.lane - b.lane);
  const height = ROW + GAP;
  return {
    lanes: lanes.map(({ worker, lane, gone, bars }, place) => ({
      worker, lane, gone, height, top: place * height,
      bars: bars.map(([start, end, task, name, state, inputs, size, failed]) => ({ start, end, task, function: functions[name], state: states[state], inputs, size, failed })),
    })),
    height: lanes.length * height,
  };
}

/** Index of the first lane that ends below a height. */
export const laneAt = (lanes, y) => Math.min(lanes.length, Math.max(0, Math.floor(y / (ROW + GAP))));

/** Index of the bar at a time, or of the nearest one within this many seconds; -1 for none. */
export function placeAt(bars, at, within = Infinity) {
  let best = -1;
  let distance = within;
  bars.forEach((bar, place) => {
    const away = Math.max(bar.start - at, at - bar.end, 0);
    if (away < distance) [best, distance] = [place, away];
  });
  return best;
}

/** Section with `factor` times the span, keeping the time `at` in place. until: null follows the present. */
export function zoomed({ span, until }, now, factor, at) {
  const wanted = Math.min(LONGEST, Math.max(SHORTEST, span * factor));
  const end = until ?? now;
  return bounded(wanted, at + (end - at) * (wanted / span), now);
}

/** Section that ends at `end`, clamped to the range that can be known. */
export const bounded = (span, end, now) => ({ span, until: end >= now ? null : Math.max(end, now - LONGEST) });

/** Axis times, from hours to microseconds, as many as fit. digits: decimals of the seconds in labels. */
export function ticks(since, until, width) {
  const least = ((until - since) * LABEL_PIXELS) / width;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = least < 1 ? [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least * 0.999) : (WHOLE_STEPS.find((each) => each >= least) ?? 43_200);
  // whole hours of the reader's time zone, not of UTC
  const zone = step < 3600 ? 0 : new Date(since * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let place = Math.ceil((since - zone) / step); place * step + zone <= until; place += 1) found.push(place * step + zone);
  return { times: found, digits: step < 1 ? Math.max(0, -Math.floor(Math.log10(step * 1.001))) : 0 };
}
