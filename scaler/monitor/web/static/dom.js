// Elements. Cluster data enters the page here as text, never as markup.

/** Create an element. Properties: class, dataset, on (listeners). Other properties become attributes, unless null. */
export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  fill(element, ...children);
  return element;
}

/** Replace the contents of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false).map(
    (child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
}

/** Set a text, touching the page only if it changed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A section of a page with a heading. */
export function panel(title, properties, ...children) {
  const heading = h("h2", {}, title);
  const { extra, ...rest } = properties ?? {};
  const head = h("div", { class: "panel-head" }, heading, extra ?? null);
  const element = h("section", { ...rest, class: `panel ${rest.class ?? ""}`, "aria-label": title }, head, ...children);
  return element;
}

/** Buttons for a single choice. choices: [[value, label]]. */
export function choice(label, choices, chosen, onChoose) {
  const buttons = choices.map(([value, text]) =>
    h("button", { type: "button", dataset: { value }, "aria-pressed": String(value === chosen), on: { click: () => choose(value) } }, text));
  function choose(value) {
    choices.forEach(([each], place) => buttons[place].setAttribute("aria-pressed", String(each === value)));
    onChoose(value);
  }
  return h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}

/** Code with a button that copies it. */
export function code(text) {
  const button = h("button", { type: "button", class: "copy", on: { click: copy } }, "Copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it";  // no access to the clipboard, for example over plain http from another machine
    }
  }
  return h("div", { class: "code" }, h("pre", { tabindex: "0" }, text), button);
}

/** Return the server's JSON answer. Throws an Error with the server's error text, and AbortError after `signal`. */
export async function ask(path, signal) {
  const response = await fetch(path, { signal, headers: { Accept: "application/json" } });
  if (response.ok) return response.json();
  const unclear = `the server answered ${response.status}`;
  const { error = unclear } = await response.json().catch(() => ({}));
  throw Object.assign(new Error(error), { status: response.status });
}

/** Fragment of a view. Empty query values are omitted. */
export function href(path, query = {}) {
  const values = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  const text = values.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}
