// Timeline: seconds per phase of each step, the phases of one step, its conversations as bars, and gaps.

import { cssColor, fill, h, hideTip, number, seconds, sharpCanvas, showTip, tipTable, visible } from "./dom.js";
import { profilesSection } from "./profiles.js";
import { get, remember, state } from "./state.js";
import { t } from "./words.js";

const INNER = new Set(["step", "verify_weights"]);

export function gapsOf(spans) {
  const step = spans.find((span) => span[0] === "step");
  const inner = spans.filter((span) => span[0] !== "step").sort((a, b) => a[1] - b[1]);
  const found = [];
  let end = step ? step[1] : inner[0]?.[1], last = t("step");
  for (const [name, start, length] of inner) {
    if (start - end > 0.02 * (step?.[2] || 1)) found.push({ seconds: start - end, before: last, after: name });
    if (start + length > end) { end = start + length; last = name; }
  }
  return found.sort((a, b) => b.seconds - a.seconds);
}

function stackChart(steps, colors, onPick, chosen) {
  const canvas = h("canvas", { role: "img", "aria-label": t("phases") });
  const totals = steps.map((line) => Object.entries(line.seconds).filter(([name]) => !INNER.has(name)));
  const draw = () => {
    const { pen, width, height } = sharpCanvas(canvas, 170), top = Math.max(...totals.map((list) => list.reduce((a, [, s]) => a + (s || 0), 0)), 1e-9), bar = Math.min(40, (width - 50) / Math.max(1, steps.length));
    pen.font = `10.5px ${cssColor("--sans")}`; pen.fillStyle = cssColor("--dim"); pen.textAlign = "right"; pen.fillText(seconds(top), 44, 10); pen.fillText("0", 44, height - 16);
    pen.textAlign = "center";
    totals.forEach((list, i) => {
      let y = height - 18;
      for (const [name, value] of list) { const size = ((value || 0) / top) * (height - 26); pen.fillStyle = colors.get(name); pen.globalAlpha = steps[i].step === chosen() ? 1 : 0.72; pen.fillRect(50 + i * bar, y - size, Math.max(1, bar - 1.5), size); y -= size; }
      pen.globalAlpha = 1;
      if (i % Math.ceil(60 / bar) === 0) { pen.fillStyle = cssColor("--dim"); pen.fillText(steps[i].step, 50 + i * bar + bar / 2, height - 4); }
    });
    return bar;
  };
  const at = (event) => Math.floor((event.clientX - canvas.getBoundingClientRect().left - 50) / draw());
  canvas.addEventListener("pointermove", (event) => { const i = at(event); if (steps[i]) showTip(event, [h("div", { class: "dim small" }, `${t("step")} ${steps[i].step}`), tipTable(totals[i].map(([name, value]) => [name, seconds(value)]))]); else hideTip(); });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => { const i = at(event); if (steps[i]) onPick(steps[i].step); });
  return { canvas, draw };
}

function ganttChart(line, colors) {
  const canvas = h("canvas", { role: "img", "aria-label": t("phasesOf") }), spans = line.spans.filter((span) => span[0] !== "step");
  const names = [...new Set(spans.map((span) => span[0]))], start = Math.min(...line.spans.map((span) => span[1])), end = Math.max(...line.spans.map((span) => span[1] + span[2]));
  const draw = () => {
    const { pen, width } = sharpCanvas(canvas, names.length * 24 + 22), x = (time) => 120 + ((time - start) / Math.max(1e-9, end - start)) * (width - 190);
    pen.font = `12px ${cssColor("--sans")}`;
    names.forEach((name, row) => {
      pen.fillStyle = cssColor("--text"); pen.textAlign = "right"; pen.fillText(name, 110, row * 24 + 15);
      pen.fillStyle = cssColor("--soft"); pen.fillRect(120, row * 24 + 3, width - 190, 16);
      for (const [, from, length] of spans.filter((span) => span[0] === name)) { pen.fillStyle = colors.get(name) || cssColor("--c7"); pen.fillRect(x(from), row * 24 + 3, Math.max(1.5, x(from + length) - x(from)), 16); }
      pen.fillStyle = cssColor("--dim"); pen.textAlign = "left"; pen.fillText(seconds(spans.filter((span) => span[0] === name).reduce((a, span) => a + span[2], 0)), width - 62, row * 24 + 15);
    });
    pen.fillStyle = cssColor("--dim"); pen.textAlign = "left"; pen.fillText("0", 120, names.length * 24 + 14); pen.textAlign = "right"; pen.fillText(seconds(end - start), width - 70, names.length * 24 + 14);
  };
  return { canvas, draw };
}

// Busy times of worker processes, one row each; `idle` is the share of the step without any.
function processChart(processes, line, colors) {
  const canvas = h("canvas", { role: "img", "aria-label": t("processes") }), shown = processes.slice(0, 64);
  const all = [...line.spans, ...shown.flatMap((one) => one.spans)], step = line.spans.find((span) => span[0] === "step");
  const start = Math.min(...all.map((span) => span[1])), end = Math.max(...all.map((span) => span[1] + span[2]));
  const rows = [{ name: t("mainProcess"), spans: line.spans.filter((span) => !INNER.has(span[0])), idle: null }, ...shown];
  const draw = () => {
    const { pen, width } = sharpCanvas(canvas, rows.length * 20 + 22), x = (time) => 150 + ((time - start) / Math.max(1e-9, end - start)) * (width - 220);
    pen.font = `11.5px ${cssColor("--sans")}`;
    rows.forEach((row, i) => {
      pen.fillStyle = cssColor("--text"); pen.textAlign = "right"; pen.fillText(visible(row.name), 142, i * 20 + 14, 138);
      pen.fillStyle = cssColor("--soft"); pen.fillRect(150, i * 20 + 3, width - 220, 14);
      for (const [name, from, length] of row.spans) { pen.fillStyle = colors.get(name) || cssColor("--c7"); pen.fillRect(x(from), i * 20 + 3, Math.max(1, x(from + length) - x(from)), 14); }
      if (row.idle !== null && step) { pen.fillStyle = cssColor("--dim"); pen.textAlign = "left"; pen.fillText(`${Math.round(100 * row.idle)} % ${t("idle")}`, width - 64, i * 20 + 14, 62); }
    });
    pen.fillStyle = cssColor("--dim"); pen.textAlign = "left"; pen.fillText("0", 150, rows.length * 20 + 14); pen.textAlign = "right"; pen.fillText(seconds(end - start), width - 70, rows.length * 20 + 14);
    return { x, width };
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), row = rows[Math.floor((event.clientY - box.top) / 20)], { x } = draw(), at = event.clientX - box.left;
    if (!row) return hideTip();
    const here = row.spans.filter(([, from, length]) => x(from) - 1 <= at && at <= x(from + length) + 1);
    showTip(event, [h("div", { class: "dim small" }, row.name), tipTable(here.map(([name, , length]) => [name, seconds(length)]))]);
  });
  canvas.addEventListener("pointerleave", hideTip);
  return { canvas, draw };
}

const QUEUED = 0, GENERATING = 1, WAITING = 2;

// Seconds of one kind of a conversation's segments.
function secondsOf(segments, kind) { return segments.filter((one) => one[0] === kind).reduce((sum, one) => sum + one[2], 0); }

// How many intervals cover each moment: [time, count from then on].
function countsOf(intervals) {
  const events = intervals.flatMap(([from, to]) => [[from, 1], [to, -1]]).sort((a, b) => a[0] - b[0] || b[1] - a[1]);
  let count = 0;
  return events.map(([time, change]) => [time, (count += change)]);
}

// Seconds in which conversations are in flight and the engine has no request: all of them wait for tools or the loop.
export function engineIdle(bars) {
  const generating = bars.flatMap((bar) => (bar[4] || []).filter((one) => one[0] !== WAITING).map((one) => [one[1], one[1] + one[2]]));
  if (!generating.length) return null;
  const changes = [...countsOf(bars.map((bar) => [bar[0], bar[1]])).map((one) => [one[0], 0, one[1]]), ...countsOf(generating).map((one) => [one[0], 1, one[1]])].sort((a, b) => a[0] - b[0]);
  let idle = 0, flying = 0, busy = 0, last = changes[0][0];
  for (const [time, kind, count] of changes) { if (flying > 0 && busy === 0) idle += time - last; if (kind === 0) flying = count; else busy = count; last = time; }
  return idle;
}

function barsChart(bars) {
  const rows = bars.slice().sort((a, b) => a[0] - b[0] || a[1] - b[1]), start = Math.min(...rows.map((bar) => bar[0])), end = Math.max(...rows.map((bar) => bar[1]));
  const canvas = h("canvas", { role: "img", "aria-label": t("conversations") }), size = Math.max(2, Math.min(14, 420 / rows.length)), top = 70;
  const flying = countsOf(rows.map((bar) => [bar[0], bar[1]])), generating = countsOf(rows.flatMap((bar) => (bar[4] || []).filter((one) => one[0] === GENERATING).map((one) => [one[1], one[1] + one[2]])));
  const colors = ["--c3", "--c0", "--c4"];
  const draw = () => {
    const { pen, width } = sharpCanvas(canvas, top + rows.length * size + 20), x = (time) => 50 + ((time - start) / Math.max(1e-9, end - start)) * (width - 60);
    for (const [changes, color] of [[flying, "--c5"], [generating, "--c0"]]) {
      pen.fillStyle = cssColor(color); pen.globalAlpha = 0.45;
      changes.forEach(([time, count], i) => { const until = i + 1 < changes.length ? changes[i + 1][0] : time, tall = (count / rows.length) * 50; pen.fillRect(x(time), 60 - tall, Math.max(0, x(until) - x(time)), tall); });
    }
    pen.globalAlpha = 1; pen.font = `10.5px ${cssColor("--sans")}`; pen.fillStyle = cssColor("--dim"); pen.textAlign = "right"; pen.fillText(String(rows.length), 44, 16); pen.fillText("0", 44, 60);
    rows.forEach(([from, to, wait, , segments], i) => {
      const tall = size < 4 ? size : size - 1, y = top + i * size, whole = x(to) - x(from), share = Math.min(1, wait / Math.max(1e-9, to - from));
      if (segments?.length) {
        pen.fillStyle = cssColor("--soft"); pen.fillRect(x(from), y, Math.max(1, whole), tall);
        for (const kind of [WAITING, QUEUED, GENERATING]) { pen.fillStyle = cssColor(colors[kind]); for (const one of segments) if (one[0] === kind) pen.fillRect(x(one[1]), y, Math.max(0.5, x(one[1] + one[2]) - x(one[1])), tall); }
        return;
      }
      pen.fillStyle = cssColor("--c0"); pen.fillRect(x(from), y, Math.max(1, whole * (1 - share)), tall);
      pen.fillStyle = cssColor("--c4"); pen.fillRect(x(from) + whole * (1 - share), y, whole * share, tall);
    });
    pen.fillStyle = cssColor("--dim"); pen.textAlign = "right"; pen.fillText(seconds(end - start), width - 8, top + rows.length * size + 14);
  };
  const facts = (bar) => (bar[4]?.length ? [[t("queued"), seconds(secondsOf(bar[4], QUEUED))], [t("generating"), seconds(secondsOf(bar[4], GENERATING))], [t("waiting"), seconds(secondsOf(bar[4], WAITING))]] : [[t("generating"), seconds(bar[1] - bar[0] - bar[2])], [t("waiting"), seconds(bar[2])]]);
  canvas.addEventListener("pointermove", (event) => { const bar = rows[Math.floor((event.clientY - canvas.getBoundingClientRect().top - top) / size)]; if (bar) showTip(event, tipTable([...facts(bar), [t("tokens"), number(bar[3])]])); else hideTip(); });
  canvas.addEventListener("pointerleave", hideTip);
  return { canvas, draw, shown: rows.length, hasSegments: rows.some((bar) => bar[4]?.length) };
}

export async function timelinePage(main, context) {
  const run = context.runs[0], detail = h("div", {}), profiles = h("div", {}), overview = h("div", {}), opened = {};
  let charts = [], steps = [], colors = new Map(), profileNames = "";
  const redraw = () => charts.forEach((chart) => chart.canvas.isConnected && chart.draw());
  const chosen = () => Number(state.step) || steps[steps.length - 1].step;
  const lineOf = (step) => steps.find((one) => one.step === step) || steps[steps.length - 1];
  const showStep = async () => {
    const line = lineOf(chosen()), gaps = gapsOf(line.spans);
    const [{ bars }, { processes }] = await Promise.all([get("bars", { run: run.id, step: line.step }).catch(() => ({ bars: [] })), get("processes", { run: run.id, step: line.step }).catch(() => ({ processes: [] }))]);
    if (context.signal.aborted) return;
    const gantt = line.spans.length ? ganttChart(line, colors) : null, known = bars.filter((bar) => bar[0] !== null), talks = known.length ? barsChart(known) : null, others = processes.length && line.spans.length ? processChart(processes, line, colors) : null, idle = talks && engineIdle(known);
    fill(detail, h("h2", {}, `${t("phasesOf")} ${line.step}`), h("div", { class: "card wide" }, gantt ? gantt.canvas : h("p", { class: "dim" }, t("noSpans")), gantt && h("p", { class: "small dim" }, gaps.length ? [`${t("gaps")}: `, gaps.slice(0, 4).map((gap) => `${seconds(gap.seconds)} ${t("between")} ${gap.before} – ${gap.after}`).join("; ")] : t("noGaps"))),
      others && [h("h2", {}, `${t("processes")} ${line.step}`), h("div", { class: "card wide" }, others.canvas, processes.length > 64 && h("p", { class: "small dim" }, `64 / ${processes.length}`))],
      talks && [h("h2", {}, `${t("conversations")} ${line.step}`), h("div", { class: "card wide" }, talks.canvas, h("div", { class: "keys" }, h("span", {}, h("i", { class: "bg5" }), t("occupancy")), talks.hasSegments && [h("span", {}, h("i", { class: "bg3" }), t("queued"))], h("span", {}, h("i", { class: "bg0" }), t("generating")), h("span", {}, h("i", { class: "bg4" }), t("waiting")), talks.hasSegments && h("span", {}, h("i", { class: "soft" }), t("betweenTurns"))), bars.length > talks.shown && h("p", { class: "small dim" }, `${talks.shown} / ${bars.length} ${t("trajectories")}`), idle > 0 && h("p", { class: "small dim" }, `${t("engineIdle")}: ${seconds(idle)}`))]);
    charts = [...charts.slice(0, 1), gantt, others, talks].filter(Boolean);
    redraw();
  };
  const pick = (step) => { remember({ step: String(step) }); return showStep(); };
  const showOverview = () => {
    const names = [...new Set(steps.flatMap((line) => [...Object.keys(line.seconds), ...line.spans.map((span) => span[0])]))].filter((name) => !INNER.has(name));
    colors = new Map(names.map((name, i) => [name, cssColor(`--c${i % 8}`)]));
    const stack = stackChart(steps, colors, pick, chosen);
    fill(overview, h("div", { class: "card wide" }, stack.canvas, h("div", { class: "keys" }, names.map((name) => h("span", {}, h("i", { style: { background: colors.get(name) } }), name)))));
    charts = [stack, ...charts.slice(1)];
  };
  const showProfiles = async () => {
    const found = (await get("profiles", { run: run.id }).catch(() => ({ profiles: [] }))).profiles, names = JSON.stringify(found.map((one) => [one.name, one.bytes]));
    if (names === profileNames || context.signal.aborted) return;
    profileNames = names;
    fill(profiles, await profilesSection(run, opened));
  };
  // `isNew`: of the page; else what changed is replaced, and nothing moves under the reader.
  const show = async (isNew) => {
    const before = steps.length ? steps[steps.length - 1].step : null;
    steps = (await get("timeline", { run: run.id })).steps;
    if (context.signal.aborted) return;
    if (!steps.length) return void fill(main, h("p", { class: "empty" }, t("none")));
    if (!overview.isConnected) fill(main, context.choice && h("div", { class: "tools" }, context.choice), h("h2", {}, t("phases")), overview, detail, profiles);
    showOverview();
    if (isNew || before === null || (!state.step && steps[steps.length - 1].step !== before)) await showStep();
    redraw();
    await showProfiles();
  };
  await show(true);
  addEventListener("resize", redraw, { signal: context.signal });
  const move = (delta) => { const next = steps[steps.indexOf(lineOf(chosen())) + delta]; if (next) pick(next.step).then(showOverview).then(redraw); };
  const keys = { ArrowLeft: () => move(-1), ArrowRight: () => move(1) };
  return { redraw: () => show(true), refresh: () => show(false), onkey: (key) => { keys[key]?.(); return key in keys; } };
}
