// Progress bars of functions and calls, and the remaining time.

import { NONE, age, clock, count, percent } from "./format.js";

/** Numbers of done, failed, cancelled, running, and queued calls in the current or last job. */
const parts = (row) => [row.job_ended - row.job_failed - row.job_cancelled, row.job_failed, row.job_cancelled, row.running, row.queued];

export function progress(row) {
  if (row.progress_percent === null) return NONE;
  const [done, failed, cancelled, running, queued] = parts(row).map(count);
  return { text: percent(Math.floor(row.progress_percent)), title: `${done} done, ${failed} failed, ${cancelled} cancelled, ${running} running, ${queued} queued` };
}

export function drawProgress(cell, row) {
  const total = parts(row).reduce((sum, part) => sum + part, 0);
  let end = 0;
  ["good", "bad", "muted", "f0"].forEach((colour, place) => {
    end += total ? 100 * parts(row)[place] / total : 0;
    cell.style.setProperty(`--to-${colour}`, `${end}%`);
  });
}

export function left(row) {
  if (row.left_seconds === null) return NONE;
  const whole = (seconds) => age(Math.max(1, seconds));
  return { text: `${whole(row.left_seconds)} ± ${whole(row.left_error_seconds)}`, title: `done at about ${clock(Date.now() / 1000 + row.left_seconds)}` };
}
