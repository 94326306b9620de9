// Tables that update in place: rows are kept by key, and cells change only with their text.

import { h, setText } from "./dom.js";
import { NONE, bytes, clock, count, counted, micros, money, percent, span } from "./format.js";
import { SCHEMA } from "./schema.js";

const FIRST_ROWS = 100;
/** A score from 0 (good) to 100 (bad): a number on a colour. */
const heat = (value) => (value === null ? { text: NONE, class: "muted", title: "Unknown" } : { text: String(value), class: `heat-${Math.ceil(value / 20)}` });
const FORMATS = { count, bytes, percent, micros, money, seconds: span, time: (value) => clock(value), heat, text: (value) => ({ text: String(value || NONE), title: String(value) }) };

/**
 * The columns of a row type, as declared by the server. custom: by name, properties that override the column's own,
 * and `then`: columns to insert after it.
 */
export function columns(kind, custom = {}) {
  return SCHEMA[kind].flatMap(({ name, title, unit, rank, help, zeroIsNone }) => {
    const { then = [], ...own } = custom[name] ?? {};
    const column = {
      name,
      title,
      help: help || null,
      rank: rank > 1 ? rank : null,
      number: unit !== "text",
      show: (row) => (zeroIsNone && !row[name] ? NONE : FORMATS[unit](row[name])),
      by: (row) => sortable(row[name]),
      ...own,
    };
    return [column, ...then];
  });
}

/** Sort key of a value: a number or a text. */
function sortable(value) {
  if (typeof value === "boolean") return Number(value);
  return typeof value === "object" ? JSON.stringify(value ?? "") : value ?? -1;
}

/**
 * columns: [{ title, show(row) -> text or { text, href, class, title }, by(row) -> sort key, number, wide, rank,
 * help, draw(cell, row): called after the text }]. Ranks 2 and 3 are hidden in narrow windows. sort: [column index,
 * 1 or -1], or null for the given order. The third click on a column restores the initial order.
 */
export function table(label, columns, key, { sort = null, empty = null, limit = FIRST_ROWS } = {}) {
  const body = h("tbody");
  const heads = columns.map((column, place) => head(column, place));
  const more = h("button", { type: "button", class: "more", hidden: true, on: { click: () => { limit = Infinity; draw(); } } });
  const grid = h("div", { class: "scroll", role: "group", "aria-label": label, tabindex: "0" },
    h("table", {}, h("caption", { class: "visually-hidden" }, label), h("thead", {}, h("tr", {}, heads)), body));
  const nothing = h("div", { class: "empty" }, empty);
  const element = h("div", { class: "table" }, grid, more, nothing);
  const known = new Map();
  const asGiven = sort === null;
  let rows = [];
  mark();

  function head(column, place) {
    const sorts = h("button", { type: "button", title: column.help, on: { click: () => order(place) } }, column.title);
    return h("th", { scope: "col", class: classes(column) }, sorts);
  }

  function order(place) {
    const first = columns[place].number ? -1 : 1;
    if (sort?.[0] !== place) sort = [place, first];
    else sort = asGiven && sort[1] !== first ? null : [place, -sort[1]];
    mark();
    draw();
  }

  function mark() {
    columns.forEach((column, place) => {
      const direction = sort?.[0] === place ? (sort[1] > 0 ? "ascending" : "descending") : "none";
      heads[place].setAttribute("aria-sort", direction);
    });
  }

  function update(newRows) {
    rows = newRows;
    draw();
  }

  function draw() {
    const sorted = sort === null ? rows : [...rows].sort(comparing(byOf(columns[sort[0]]), sort[1]));
    const shown = sorted.slice(0, limit);
    const keys = new Set(shown.map(key));
    for (const [each, line] of known) {
      if (keys.has(each)) continue;
      line.element.remove();
      known.delete(each);
    }
    let place = body.firstChild;
    for (const row of shown) {
      const line = known.get(key(row)) ?? made(row);
      refresh(line, row);
      if (line.element === place) place = place.nextSibling;
      else body.insertBefore(line.element, place);
    }
    grid.hidden = rows.length === 0;
    nothing.hidden = rows.length > 0;
    more.hidden = rows.length <= limit;
    setText(more, `Show all ${counted(rows.length, "row")}`);
  }

  function made(row) {
    const cells = columns.map((column, place) => h(place === 0 ? "th" : "td", { class: classes(column), scope: place === 0 ? "row" : null }));
    const line = { element: h("tr", {}, cells), cells, row: null, links: columns.map(() => null) };
    known.set(key(row), line);
    return line;
  }

  function refresh(line, row) {
    if (line.row === row && !columns.some((column) => column.aging)) return;
    line.row = row;
    columns.forEach((column, place) => {
      const shown = column.show(row);
      const { text, href = null, title = "", class: extra = "" } = typeof shown === "object" ? shown : { text: shown };
      const cell = line.cells[place];
      if ((href !== null) !== (line.links[place] !== null)) {
        line.links[place] = href === null ? null : h("a");
        cell.replaceChildren(...(line.links[place] ? [line.links[place]] : []));
      }
      const link = line.links[place];
      if (link !== null && link.getAttribute("href") !== href) link.setAttribute("href", href);
      setText(link ?? cell, text);
      if (cell.title !== title) cell.title = title;
      const wanted = `${classes(column)} ${extra}`.trim();
      if (cell.className !== wanted) cell.className = wanted;
      column.draw?.(cell, row);
    });
  }

  return { element, update };
}

const classes = (column) => [column.number ? "number" : "", column.rank ? `rank-${column.rank}` : "", column.wide ? "wide" : "", column.class ?? ""].filter(Boolean).join(" ");

/** Sort key of a column: its own, or the shown text. */
function byOf(column) {
  return column.by ?? ((row) => {
    const shown = column.show(row);
    return typeof shown === "object" ? shown.text : shown;
  });
}

function comparing(by, direction) {
  return (left, right) => {
    const a = by(left);
    const b = by(right);
    if (typeof a === "string" && typeof b === "string") return direction * a.localeCompare(b, "en", { numeric: true });
    return direction * ((a ?? -Infinity) - (b ?? -Infinity));
  };
}
