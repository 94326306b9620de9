// Converts profile stacks to a tree of frames, and finds the hottest frames. Pure.

/**
 * Return the root of a tree of { name, us, own, start, depth, parent, children }. us: microseconds. start: offset
 * from the left in microseconds.
 */
export function treeOf({ frames, stacks }) {
  const root = frameOf("all", null);
  for (const [us, ...numbers] of stacks) {
    let at = root;
    at.us += us;
    for (const number of numbers) {
      if (!at.byNumber.has(number)) at.byNumber.set(number, frameOf(frames[number], at));
      at = at.byNumber.get(number);
      at.us += us;
    }
    at.own += us;
  }
  place(root);
  return root;
}

const frameOf = (name, parent) => ({ name, parent, depth: parent === null ? 0 : parent.depth + 1, us: 0, own: 0, start: 0, byNumber: new Map(), children: [] });

/** Sort callees by name, so that they keep their positions as samples arrive. */
function place(frame) {
  frame.children = [...frame.byNumber.values()].sort((left, right) => (left.name < right.name ? -1 : 1));
  let start = frame.start;
  for (const child of frame.children) {
    child.start = start;
    start += child.us;
    place(child);
  }
}

/** Names of a frame and its callers, outermost first. The path locates the frame in a later profile. */
export function pathOf(frame) {
  return frame.parent === null ? [] : [...pathOf(frame.parent), frame.name];
}

/** The frame at a path, or its nearest existing caller. */
export function frameAt(root, path) {
  let at = root;
  for (const name of path) {
    const next = at.children.find((child) => child.name === name);
    if (next === undefined) break;
    at = next;
  }
  return at;
}

/**
 * Bars of the frames from the root to `zoomed`, and of its callees: { frame, left, width }, as shares of the total
 * width. least: minimum width.
 */
export function barsOf(zoomed, least) {
  const bars = [];
  for (let caller = zoomed.parent; caller !== null; caller = caller.parent) bars.unshift({ frame: caller, left: 0, width: 1 });
  const whole = zoomed.us || 1;
  const add = (frame) => {
    const width = frame.us / whole;
    if (width < least) return;
    bars.push({ frame, left: (frame.start - zoomed.start) / whole, width });
    frame.children.forEach(add);
  };
  add(zoomed);
  return bars;
}

/** Return [{ frame, own, total }] in microseconds, longest own time first. Recursive frames count once. */
export function hottest(root) {
  const found = new Map();
  const add = (frame, above) => {
    const row = found.get(frame.name) ?? { frame: frame.name, own: 0, total: 0 };
    found.set(frame.name, row);
    row.own += frame.own;
    if (!above.has(frame.name)) row.total += frame.us;
    const here = new Set(above).add(frame.name);
    for (const child of frame.children) add(child, here);
  };
  for (const child of root.children) add(child, new Set());
  return [...found.values()].sort((left, right) => right.own - left.own || right.total - left.total || (left.frame < right.frame ? -1 : 1));
}

/** Return the samples added since an earlier answer, as a profile. */
export function since(found, earlier) {
  const key = (of, numbers) => numbers.map((number) => of.frames[number]).join("\n");
  const before = new Map(earlier.stacks.map(([us, ...numbers]) => [key(earlier, numbers), us]));
  const stacks = found.stacks.map(([us, ...numbers]) => [us - (before.get(key(found, numbers)) ?? 0), ...numbers]).filter(([us]) => us > 0);
  return { ...found, samples: Math.max(0, found.samples - earlier.samples), stacks };
}
