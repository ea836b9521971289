// Elements, text and numbers. Text of runs enters the page only as text nodes, with invisible characters shown.

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function visible(text) {
  return String(text).replace(HIDDEN, (c) => (c === "\r" ? "␍" : `⟨${c.charCodeAt(0).toString(16).padStart(4, "0")}⟩`));
}

export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : name === "title" ? visible(value) : value);
  }
  add(element, children);
  return element;
}

export function add(element, children) {
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value);
  if (size >= 1e15 || size < 1e-3) return value.toExponential(Math.min(2, digits - 2)).replace("e+", "e");
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
  return String(Number(value.toPrecision(digits)));
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value < 1) return `${number(value * 1000, 3)} ms`;
  if (value < 59.95) return `${number(value, 3)} s`;
  const whole = Math.round(value), [large, small, names] = whole < 3600 ? [Math.floor(whole / 60), whole % 60, ["min", "s"]] : [Math.floor(whole / 3600), Math.round((whole % 3600) / 60), ["h", "min"]];
  return small && small < 60 ? `${large} ${names[0]} ${small} ${names[1]}` : `${small === 60 ? large + 1 : large} ${names[0]}`;
}

export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let size = value, unit = 0;
  while (size >= 1000 && unit < 4) { size /= 1000; unit += 1; }
  return `${size.toPrecision(3)} ${units[unit]}`;
}

export function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function runColor(run) { return cssColor(`--c${run % 8}`); }

export function showTip(event, content) {
  const tip = document.getElementById("tip");
  fill(tip, content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const x = event.clientX + 16 + box.width > innerWidth ? event.clientX - box.width - 12 : event.clientX + 16;
  const y = Math.min(event.clientY + 14, innerHeight - box.height - 6);
  tip.style.left = `${Math.max(4, x)}px`;
  tip.style.top = `${Math.max(4, y)}px`;
}

export function hideTip() { document.getElementById("tip").hidden = true; }

export function tipTable(rows) {
  return h("table", {}, rows.map(([name, value]) => h("tr", {}, h("td", { class: "dim" }, name), h("td", { class: "num" }, value))));
}

export function sharpCanvas(canvas, height) {
  const width = canvas.clientWidth || canvas.parentElement?.clientWidth || 320, ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}
