// A line chart on a canvas: several runs, smoothing, log axis, hover, drag to zoom.

import { cssColor, fill, h, hideTip, number, runColor, seconds, sharpCanvas, showTip, tipTable } from "./dom.js";
import { t } from "./words.js";

const HEIGHT = 180;
const MARGIN = { left: 52, right: 8, top: 6, bottom: 20 };

export function smoothCurve(values, weight) {
  if (weight <= 0) return values;
  let average = 0, total = 0;
  return values.map((value) => {
    if (value === null) return null;
    average = average * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return average / total;
  });
}

export function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.8);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  return found;
}

// Round values between two powers of ten, whose exponents are given.
export function logTicks(low, high) {
  const all = [];
  for (let power = Math.floor(low); power <= high; power += 1) for (const n of [1, 2, 5]) all.push(n * 10 ** power);
  const inside = all.filter((value) => value >= 10 ** low && value <= 10 ** high), powers = inside.filter((value) => Number.isInteger(Number(Math.log10(value).toFixed(9))));
  if (inside.length < 3) return ticks(10 ** low, 10 ** high, 4).filter((value) => value > 0);
  const fit = inside.length <= 6 ? inside : powers;
  return fit.filter((_, i) => i % Math.ceil(fit.length / 6) === 0);
}

// Without Math.min(...): a long list is too many arguments.
function ends(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  return [low, high];
}

export class Chart {
  // series: [{run, color, label, points: [[step, time, value], ...]}]
  constructor(title, options) {
    this.options = options; // () => {byTime, isLog, smooth, zoom}, onZoom(range)
    this.series = [];
    this.canvas = h("canvas", { role: "img", "aria-label": title, tabindex: 0, onpointermove: (e) => this.hover(e), onpointerleave: () => this.leave(), onpointerdown: (e) => this.press(e), onpointerup: (e) => this.release(e), onpointercancel: () => this.cancel(), ondblclick: () => options.onZoom(null), onkeydown: (e) => this.key(e), onblur: () => this.leave() });
    this.now = h("span", { class: "now" });
    this.element = h("div", { class: "card chart" }, h("h3", {}, h("span", { class: "name", title }, title), this.now), this.canvas);
    this.dragFrom = null;
    this.cursor = null; // of the keyboard: an index of the first line
  }

  set(series) {
    this.series = series;
    const last = series.length === 1 ? series[0].points.findLast((point) => point[2] !== null) : null;
    fill(this.now, last ? number(last[2]) : "");
    this.draw();
  }

  scale() {
    const { byTime, isLog, smooth, zoom } = this.options.get();
    const lines = this.series.map((one) => {
      const kept = one.points.filter((p) => p[2] !== null && (!isLog || p[2] > 0));
      return { ...one, xs: kept.map((p) => (byTime ? p[1] : p[0])), raw: kept.map((p) => p[2]), ys: smoothCurve(kept.map((p) => p[2]), kept.length >= 12 ? smooth : 0) };
    }).filter((one) => one.xs.length);
    const xs = lines.flatMap((one) => one.xs);
    let [x0, x1] = zoom || ends(xs);
    const inside = lines.flatMap((one) => one.raw.filter((_, i) => one.xs[i] >= x0 && one.xs[i] <= x1));
    const sorted = (inside.length ? inside : lines.flatMap((one) => one.raw)).slice().sort((a, b) => a - b);
    let y0 = sorted[0], y1 = sorted[sorted.length - 1];
    if (isLog) { y0 = Math.log10(y0); y1 = Math.log10(y1); }
    if (y1 - y0 < 1e-12) { const pad = Math.abs(y0) * 0.1 || 0.5; y0 -= pad; y1 += pad; } else { const pad = (y1 - y0) * 0.06; y0 -= pad; y1 += pad; }
    if (!(x1 > x0)) { x0 -= 0.5; x1 = x0 + 1; } // one point, in the middle
    return { lines, x0, x1, y0, y1, isLog, byTime, smooth };
  }

  draw() {
    if (!this.canvas.isConnected) return;
    const { pen, width, height } = sharpCanvas(this.canvas, HEIGHT);
    const view = this.view = this.scale();
    if (!view.lines.length) return;
    const x = this.x = (value) => MARGIN.left + ((value - view.x0) / (view.x1 - view.x0)) * (width - MARGIN.left - MARGIN.right);
    const y = (value) => height - MARGIN.bottom - (((view.isLog ? Math.log10(value) : value) - view.y0) / (view.y1 - view.y0)) * (height - MARGIN.top - MARGIN.bottom);
    pen.font = `10.5px ${cssColor("--sans")}`;
    pen.fillStyle = cssColor("--dim");
    pen.strokeStyle = cssColor("--line");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const value of view.isLog ? logTicks(view.y0, view.y1) : ticks(view.y0, view.y1, 4)) {
      const place = y(value);
      pen.beginPath(); pen.moveTo(MARGIN.left, place); pen.lineTo(width - MARGIN.right, place); pen.stroke();
      pen.fillText(number(value, 3), MARGIN.left - 6, place);
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const tick of ticks(view.x0, view.x1, Math.max(2, Math.floor(width / 90))).filter((one) => view.byTime || Number.isInteger(one))) {
      const text = view.byTime ? seconds(tick) : number(tick), half = pen.measureText(text).width / 2;
      pen.fillText(text, Math.min(x(tick), width - half), height - MARGIN.bottom + 6);
    }
    pen.save();
    pen.beginPath(); pen.rect(MARGIN.left - 3, 0, width - MARGIN.left - MARGIN.right + 6, height - MARGIN.bottom + 1); pen.clip();
    for (const line of view.lines) this.drawLine(pen, line, x, y);
    pen.restore();
    if (this.dragFrom !== null && this.dragTo !== undefined) {
      pen.fillStyle = cssColor("--accent"); pen.globalAlpha = 0.15;
      pen.fillRect(Math.min(this.dragFrom, this.dragTo), MARGIN.top, Math.abs(this.dragTo - this.dragFrom), height - MARGIN.bottom - MARGIN.top);
      pen.globalAlpha = 1;
    }
  }

  drawLine(pen, line, x, y) {
    const color = runColor(line.color), trace = (values) => { pen.beginPath(); line.xs.forEach((place, i) => (i ? pen.lineTo(x(place), y(values[i])) : pen.moveTo(x(place), y(values[i])))); pen.stroke(); };
    pen.strokeStyle = pen.fillStyle = color;
    pen.lineJoin = "round";
    pen.setLineDash(line.color >= 8 ? [6, 3] : []);
    if (line.ys !== line.raw && this.view.smooth > 0 && line.xs.length >= 12) { pen.globalAlpha = 0.22; pen.lineWidth = 1; trace(line.raw); pen.globalAlpha = 1; }
    pen.lineWidth = 1.8;
    trace(line.ys);
    pen.setLineDash([]);
    if (line.xs.length < 12) line.xs.forEach((place, i) => { pen.beginPath(); pen.arc(x(place), y(line.ys[i]), 2.5, 0, 7); pen.fill(); });
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect(), pixel = event.clientX - box.left;
    const share = (pixel - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    return { pixel, value: this.view.x0 + Math.min(1, Math.max(0, share)) * (this.view.x1 - this.view.x0) };
  }

  hover(event) {
    if (!this.view?.lines.length) return;
    const { pixel, value } = this.at(event);
    if (this.dragFrom !== null) { this.dragTo = pixel; this.draw(); return; }
    this.point(value, event);
  }

  // Mark the place nearest to a value of the x axis, and show what the lines have there.
  point(value, event) {
    const rows = this.view.lines.map((line) => {
      let nearest = 0;
      line.xs.forEach((place, i) => { if (Math.abs(place - value) < Math.abs(line.xs[nearest] - value)) nearest = i; });
      return { line, nearest };
    });
    const { line, nearest } = rows[0];
    this.draw();
    const pen = this.canvas.getContext("2d"), place = this.x(line.xs[nearest]);
    pen.strokeStyle = cssColor("--dim"); pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(place, MARGIN.top); pen.lineTo(place, HEIGHT - MARGIN.bottom); pen.stroke();
    const at = this.view.byTime ? seconds(line.xs[nearest]) : `${t("step")} ${line.xs[nearest]}`;
    const values = rows.map((row) => [h("span", {}, h("i", { class: `dot bg${row.line.color % 8}` }), row.line.label, !this.view.byTime && row.line.xs[row.nearest] !== line.xs[nearest] && h("span", { class: "dim" }, ` (${t("step")} ${row.line.xs[row.nearest]})`)), number(row.line.raw[row.nearest], 6)]);
    showTip(event, [h("div", { class: "dim small" }, at), tipTable(values)]);
    return nearest;
  }

  // Arrows move along the curve, Enter opens the step's samples, Escape resets the zoom.
  key(event) {
    const line = this.view?.lines[0], move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
    if (!line) return;
    if (move !== undefined) {
      const inside = line.xs.map((place, i) => i).filter((i) => line.xs[i] >= this.view.x0 && line.xs[i] <= this.view.x1);
      if (!inside.length) return;
      const low = inside[0], high = inside[inside.length - 1], from = this.cursor ?? (move > 0 ? low - 1 : high + 1);
      this.cursor = Math.min(high, Math.max(low, from + move));
      const box = this.canvas.getBoundingClientRect();
      this.point(line.xs[this.cursor], { clientX: box.left + this.x(line.xs[this.cursor]), clientY: box.top + 20 });
    } else if (event.key === "Enter" && this.cursor !== null && !this.view.byTime) this.options.onPick?.(line.xs[this.cursor]);
    else if (event.key === "Escape") this.options.onZoom(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  leave() { hideTip(); this.cursor = null; if (this.dragFrom === null) this.draw(); }

  cancel() { this.dragFrom = null; this.dragTo = undefined; this.leave(); }

  press(event) {
    if (!this.view?.lines.length || event.button > 0) return;
    this.dragFrom = this.at(event).pixel;
    this.dragValue = this.at(event).value;
    this.canvas.setPointerCapture(event.pointerId);
  }

  release(event) {
    if (this.dragFrom === null) return;
    const { pixel, value } = this.at(event), from = this.dragValue, isDrag = Math.abs(pixel - this.dragFrom) > 6;
    this.dragFrom = null;
    this.dragTo = undefined;
    if (isDrag) this.options.onZoom([Math.min(from, value), Math.max(from, value)]);
    else if (event.pointerType === "touch") this.point(value, event); // a tap shows values
    else this.options.onPick?.(Math.round(value));
  }
}
