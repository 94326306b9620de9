// The history of a time range, as chart columns and as sentences.

import { ask, h, href } from "./dom.js";
import { clock, count, stateName } from "./format.js";

const DAY = 86_400;
const NEAR_SECONDS = 5;  // shorter gaps between points are ignored
const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DATE = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const WHAT = { started: "scheduler started", ended: "scheduler ended", scaling: "decision" };

/** A moment in words: 03:00 yesterday. */
export function moment(at, now = Date.now() / 1000) {
  const day = (seconds) => new Date(seconds * 1000).toDateString();
  const which = day(at) === day(now) ? "today" : day(at) === day(now - DAY) ? "yesterday" : `on ${DATE.format(new Date(at * 1000))}`;
  return `${TIME.format(new Date(at * 1000))} ${which}`;
}

/** The time in a query in unix seconds; null for now. */
export function momentOf(query) {
  const at = Number(query.get("at"));
  return Number.isFinite(at) && at > 0 ? at : null;
}

/** Return the history between two times, with the points as rows. */
export async function history(from, to, signal) {
  const found = await ask(`api/history?from=${from}&to=${to}`, signal);
  const columns = Object.entries(found.points);
  return { ...found, points: found.points.at.map((_at, place) => Object.fromEntries(columns.map(([name, values]) => [name, values[place]]))) };
}

/** Chart columns. Each point extends from its start, with gaps where no scheduler ran. */
export function columnsOf(points, names) {
  const columns = Object.fromEntries(["at", ...names].map((name) => [name, []]));
  const add = (at, point) => {
    columns.at.push(at);
    for (const name of names) columns[name].push(point === null ? null : point[name]);
  };
  points.forEach((point, place) => {
    const next = points[place + 1];
    const end = point.at + Math.max(point.seconds, 1);
    add(point.at, point);
    if (next && next.at - end <= NEAR_SECONDS) return;
    add(end, point);  // draws a run of one point as a line
    if (next) add((end + next.at) / 2, null);
  });
  return columns;
}

/** A list entry for an event. */
export function eventLine(event) {
  return h("li", {}, h("a", { href: href(["history"], { at: Math.floor(event.at) }), title: `Show ${moment(event.at)}` }, h("time", {}, clock(event.at))),
    h("span", {}, h("b", {}, WHAT[event.kind] ?? stateName(event.kind)), event.subject === "scheduler" ? "" : ` ${event.subject}`, event.times > 1 ? ` (${count(event.times)} ×)` : ""),
    event.text && h("span", { class: "reason" }, event.text));
}

export const isDecision = (event) => event.kind === "scaling" || event.kind === "started" || event.kind === "ended";

/** Chart marks of a history: runs, decisions, and the shown moment. */
export function marksOf(events, at) {
  const marks = events.filter(isDecision).map((event) => ({ at: event.at, kind: event.kind }));
  return at === null ? marks : [...marks, { at, kind: "moment" }];
}
