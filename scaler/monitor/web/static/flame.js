// A flame graph: a bar for each frame, below its caller, as wide as its time.

import { colour, onTheme } from "./charts.js";
import { h, setText } from "./dom.js";
import { percent, span } from "./format.js";
import { barsOf, frameAt, pathOf } from "./stacks.js";

const ROW = 21;
const COLOURS = 8;
const LEAST_PIXELS = 1;
const KEYS = "Arrow keys move down to a callee, up to the caller, and left and right to neighbors. Enter zooms in, and Escape zooms out.";
const START = "Point at a frame, or use the arrow keys. Click or press Enter to zoom in, and Escape to zoom out.";

/** A canvas with the frames of a tree, and a line about the chosen frame. name: of the profiled function or task. */
export function flame(name) {
  const canvas = h("canvas", { tabindex: "0", role: "application", "aria-roledescription": "flame graph", "aria-label": `Flame graph of ${name}. ${KEYS}`, "aria-describedby": "chosen-frame" });
  const place = h("div", { class: "flame" }, canvas);
  const details = h("p", { class: "details", id: "chosen-frame", "aria-live": "polite" }, START);
  const back = h("button", { type: "button", hidden: true, on: { click: () => zoom(root) } }, "Show everything");
  const element = h("div", { class: "flames" }, place, h("div", { class: "tools" }, details, back));
  let root = null;
  let zoomed = null;
  let chosen = null;
  let bars = [];
  let frame = 0;
  let theme = themed();

  function themed() {
    const names = ["text", "muted", "panel", "focus"];
    return { ...Object.fromEntries(names.map((each) => [each, colour(each)])), fills: Array.from({ length: COLOURS }, (_none, number) => colour(`f${number}`)) };
  }

  /** Show another tree, keeping the zoom and the chosen frame. */
  function update(tree) {
    zoomed = root === null ? tree : frameAt(tree, pathOf(zoomed));
    chosen = chosen === null ? null : frameAt(tree, pathOf(chosen));
    root = tree;
    if (chosen !== null) tell(chosen);
    redraw();
  }

  function redraw() {
    frame ||= requestAnimationFrame(() => { frame = 0; draw(); });
  }

  function draw() {
    const width = place.clientWidth;
    if (width === 0 || root === null) return;
    bars = barsOf(zoomed, LEAST_PIXELS / width);
    const height = ROW * (1 + bars.reduce((most, { frame: each }) => Math.max(most, each.depth), 0));
    const scale = window.devicePixelRatio || 1;
    Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const to = canvas.getContext("2d");
    to.scale(scale, scale);
    to.font = "12px system-ui, sans-serif";
    to.textBaseline = "middle";
    for (const bar of bars) drawBar(to, bar, width);
    back.hidden = zoomed === root;
  }

  function drawBar(to, { frame: each, left, width }, whole) {
    const [x, y, wide] = [left * whole, each.depth * ROW, Math.max(LEAST_PIXELS, width * whole - 1)];
    const isCaller = each.depth < zoomed.depth || each === root;
    to.globalAlpha = isCaller ? 0.18 : 0.38;
    to.fillStyle = isCaller ? theme.muted : theme.fills[numberOf(each.name)];
    to.fillRect(x, y, wide, ROW - 1);
    to.globalAlpha = 1;
    if (each === chosen) {
      to.strokeStyle = theme.focus;
      to.lineWidth = 2;
      to.strokeRect(x + 1, y + 1, Math.max(1, wide - 2), ROW - 3);
    }
    if (wide < 28) return;
    const text = labelOf(each);
    const share = Math.min(1, (wide - 8) / to.measureText(text).width);
    if (share * text.length < 3) return;
    to.fillStyle = theme.text;
    to.fillText(share < 1 ? `${text.slice(0, Math.floor(share * text.length) - 1)}…` : text, x + 4, y + ROW / 2, wide - 6);
  }

  const labelOf = (each) => (each === root ? "all samples" : each.name);
  const tell = (each) => setText(details, `${labelOf(each)} · ${percent(100 * each.us / (root.us || 1))} of the time, ${span(each.us / 1e6)} · own time ${percent(100 * each.own / (root.us || 1))}, ${span(each.own / 1e6)}`);

  function choose(each) {
    if (!each) return;
    chosen = each;
    tell(each);
    redraw();
    const top = each.depth * ROW;
    place.scrollTop = Math.min(top, Math.max(place.scrollTop, top + ROW - place.clientHeight));
  }

  function zoom(to) {
    zoomed = to;
    choose(to);
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    const depth = Math.floor((event.clientY - box.top) / ROW);
    const share = (event.clientX - box.left) / box.width;
    return bars.find((bar) => bar.frame.depth === depth && bar.left <= share && share < bar.left + bar.width)?.frame ?? null;
  }

  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || root === null) return;
    if (event.key === "Escape" || event.key === "0") zoom(root);
    else if (event.key === "Enter" || event.key === " ") zoom(chosen ?? root);
    else if (["ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight"].includes(event.key)) choose(chosen === null ? zoomed : next(event.key));
    else return;
    event.preventDefault();
  }

  function next(key) {
    if (key === "ArrowUp") return chosen.parent;
    if (key === "ArrowDown") return chosen.children.reduce((most, each) => (most === null || each.us > most.us ? each : most), null);
    const beside = bars.filter((bar) => bar.frame.depth === chosen.depth).map((bar) => bar.frame);
    return beside[beside.indexOf(chosen) + (key === "ArrowLeft" ? -1 : 1)];
  }

  canvas.addEventListener("keydown", pressed);
  canvas.addEventListener("pointermove", (event) => {
    const found = at(event);
    canvas.classList.toggle("over", found !== null);
    if (found !== null) tell(found);
  });
  canvas.addEventListener("pointerleave", () => (chosen === null ? setText(details, START) : tell(chosen)));
  canvas.addEventListener("click", (event) => {
    const found = at(event);
    if (found !== null) zoom(found === zoomed && found.parent !== null ? found.parent : found);
  });
  const sized = new ResizeObserver(redraw);
  sized.observe(place);
  const forget = onTheme(() => { theme = themed(); redraw(); });

  function close() {
    sized.disconnect();
    forget();
    cancelAnimationFrame(frame);
  }
  return { element, update, close };
}

/** Colour of a frame, shared by all frames of a file. */
function numberOf(name) {
  const file = /\((.*):\d+\)$/.exec(name)?.[1] ?? name;
  return [...file].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 65_521, 7) % COLOURS;
}
