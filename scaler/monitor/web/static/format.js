// Display texts of figures. A dash stands for an unknown value.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FINE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
export const NONE = "–";
const known = (value) => typeof value === "number" && Number.isFinite(value);

export const count = (value) => (known(value) ? WHOLE.format(value) : NONE);

/** A count with its noun: 1 task, 2,060 tasks. */
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** A figure in a few digits: 0.4, 12, 1,204, 1.2 M. */
export function short(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 999_950_000) return `${FINE.format(value / 1e9)} G`;
  if (size >= 999_950) return `${FINE.format(value / 1e6)} M`;
  if (size >= 99_950) return `${FINE.format(value / 1e3)} k`;
  return size >= 10 || Number.isInteger(value) ? WHOLE.format(value) : FINE.format(value);
}

export const percent = (value) => (known(value) ? `${value >= 10 ? WHOLE.format(value) : FINE.format(value)} %` : NONE);

/** An amount of money, in the currency of unit_price. */
export const money = (value) => (known(value) ? value.toFixed(value && value < 1 ? 4 : 2) : NONE);

export function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let place = 0;
  while (value >= 1023.5 && place < units.length - 1) {
    value /= 1024;
    place += 1;
  }
  return `${place === 0 || value >= 99.95 ? WHOLE.format(value) : FINE.format(value)} ${units[place]}`;
}

/** A time span in seconds. */
export function span(seconds) {
  if (!known(seconds)) return NONE;
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 0.0009995) return `${WHOLE.format(seconds * 1e6)} µs`;
  if (size < 0.9995) return `${size < 0.00995 ? (seconds * 1e3).toFixed(1) : WHOLE.format(seconds * 1e3)} ms`;
  if (size < 59.95) return `${seconds.toFixed(size < 9.995 ? 2 : 1)} s`;
  const whole = Math.round(size);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

export const micros = (value) => (known(value) && value > 0 ? span(value / 1e6) : NONE);

/** Whole seconds, minutes, or hours, for values that change every second. */
export function age(seconds) {
  if (!known(seconds)) return NONE;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) return `${whole} s`;
  return whole < 7200 ? `${Math.floor(whole / 60)} min` : `${Math.floor(whole / 3600)} h`;
}

/** A time of day, with the date unless it is today. */
export function clock(at, now = Date.now() / 1000) {
  if (!known(at) || at <= 0) return NONE;
  return (Math.abs(now - at) < 43_200 ? CLOCK : DAY).format(new Date(at * 1000));
}

/** A time of day with a fraction of the second. */
export function precise(at, digits = 6) {
  const near = at + 3e-7;  // compensates for the precision of a double
  return `${clock(near)}.${String(Math.floor((near % 1) * 10 ** digits)).padStart(digits, "0")}`;
}

export const shortId = (id) => (id.length > 12 ? `${id.slice(0, 4)}…${id.slice(-6)}` : id);

/** Cut a text in its middle. */
export function middle(text, length) {
  if (text.length <= length) return text;
  const half = Math.floor((length - 1) / 2);
  return `${text.slice(0, length - 1 - half)}…${text.slice(text.length - half)}`;
}

const GLYPHS = { running: "●", suspended: "◐", assigned: "○", ready: "○", waiting: "◌", retrying: "↻", done: "✓", cancelled: "⊘" };

/** Return whether a task in this state has ended: done, cancelled, or failed in any way. */
export const isOver = (state) => !(state in GLYPHS) || state === "done" || state === "cancelled";
export const isQueued = (state) => state === "ready" || state === "waiting" || state === "assigned";

/** Symbol of a state, for readers who cannot rely on colour. */
export const glyph = (state) => GLYPHS[state] ?? "✕";
export const stateClass = (state) => `state-${state in GLYPHS ? state : "failed"}`;
export const stateName = (state) => state.replaceAll("_", " ");
