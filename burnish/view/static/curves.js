// Curves: every metric of the chosen runs, grouped by prefix.

import { Chart } from "./chart.js";
import { fill, h } from "./dom.js";
import { get, go, hashOf, remember, state } from "./state.js";
import { t } from "./words.js";

const KEY_METRICS = ["critic/score/mean", "val/loss", "train/loss", "actor/entropy", "response_length/mean", "actor/grad_norm", "actor/kl_loss", "actor/ppo_kl", "actor/pg_loss", "rollout/zero_variance_groups", "rollout/truncated", "rollout_corr/k3_kl", "perf/throughput"];

function zoomRange() { const [a, b] = state.zoom.split(":").map(Number); return state.zoom && Number.isFinite(a) && Number.isFinite(b) ? [a, b] : null; }

export function groupNames(names) {
  const key = [...names.filter((name) => name.startsWith("val-core/")).slice(0, 4), ...KEY_METRICS.filter((name) => names.includes(name))];
  const groups = new Map([[t("key"), key]]);
  for (const name of names) {
    const prefix = name.includes("/") ? name.split("/")[0] : t("other");
    if (!groups.has(prefix)) groups.set(prefix, []);
    groups.get(prefix).push(name);
  }
  return [...groups].filter(([, list]) => list.length);
}

const MANY_STEPS = 1000; // of longer curves the server sends a part of the points, and more of a zoomed part
const NAMES_PER_REQUEST = 50;

async function fetchCurves(run, names, range) {
  const parts = [];
  for (let i = 0; i < names.length; i += NAMES_PER_REQUEST) parts.push(get("metrics", { run: run.id, names: names.slice(i, i + NAMES_PER_REQUEST).join(","), ...range }));
  return Object.assign({}, ...(await Promise.all(parts)).map((part) => part.curves));
}

export async function curvesPage(main, context) {
  let names = [];
  const charts = new Map(), open = new Set([t("key")]), place = h("div", {});
  const fetchNames = async () => [...new Set((await Promise.all(context.runs.map((run) => get("metrics", { run: run.id })))).flatMap((answer) => answer.names))].sort();
  const isLong = () => context.runs.some((run) => run.step > MANY_STEPS);
  const options = {
    get: () => ({ byTime: state.x === "time", isLog: state.log === "1", smooth: Number(state.smooth), zoom: zoomRange() }),
    onZoom: (range) => { remember({ zoom: range ? range.map((v) => Number(v.toPrecision(6))).join(":") : "" }); redraw(); if (isLong()) load([...charts.keys()]); },
    onPick: (step) => { if (state.x === "step" && context.runs.length === 1) go({ page: "samples", step: String(step), group: "", row: "" }); },
  };
  const redraw = () => { for (const list of charts.values()) for (const chart of list) chart.draw(); };
  // A key metric that never changes tells nothing; its own group still has it.
  const isFlat = (series) => series.every((one) => one.points.length > 1 && one.points.every((point) => point[2] === one.points[0][2]));
  const load = async (wanted) => {
    const zoom = state.x === "step" && isLong() ? zoomRange() : null, range = zoom ? { from: Math.max(0, Math.floor(zoom[0]) - 1), to: Math.ceil(zoom[1]) + 1 } : {};
    const all = await Promise.all(context.runs.map(async (run) => [run, await fetchCurves(run, wanted, range)]));
    for (const name of wanted) {
      const series = all.filter(([, curves]) => curves[name]?.length).map(([run, curves]) => ({ run: run.id, color: run.color, label: run.name, points: curves[name] }));
      for (const chart of charts.get(name) || []) { if (chart.isKey) chart.element.hidden = isFlat(series) && !zoom; chart.set(series); }
    }
  };
  const build = () => {
    charts.clear();
    const wanted = state.filter.toLowerCase(), shown = names.filter((name) => name.toLowerCase().includes(wanted));
    if (!names.length) return fill(place, h("p", { class: "empty" }, t("noMetrics")));
    if (!shown.length) return fill(place, h("p", { class: "empty" }, t("noMatch")));
    fill(place, groupNames(shown).map(([title, list], index) => {
      const isKey = title === t("key"), isOpen = open.has(title) || (wanted && !isKey);
      const grid = h("div", { class: "grid" });
      const start = () => {
        if (grid.children.length) return;
        for (const name of list) { const chart = new Chart(name, options); chart.isKey = isKey; charts.set(name, [...(charts.get(name) || []), chart]); grid.append(chart.element); }
        load(list);
      };
      const group = h("details", { class: "group", open: isOpen, ontoggle: (e) => { if (e.target.open) { open.add(title); start(); } else if (!wanted) open.delete(title); } }, h("summary", {}, title, " ", h("span", { class: "dim" }, `${list.length}`)), grid);
      if (isOpen) queueMicrotask(start);
      return group;
    }));
  };
  const refresh = async () => {
    const now = await fetchNames(), isNew = now.some((name) => !names.includes(name));
    if (context.signal.aborted) return;
    names = now;
    if (!isNew) return load([...charts.keys()]);
    const top = scrollY;
    build(); // a metric that was not there before, as that of a first validation
    scrollTo(0, top);
  };
  names = await fetchNames();
  if (context.signal.aborted) return {};
  const smoothing = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: state.smooth, "aria-label": t("smoothing"), oninput: (e) => { remember({ smooth: e.target.value }); redraw(); } });
  const share = h("button", { class: "plain", onclick: async () => {
    const link = location.href.split("#")[0] + hashOf();
    if (!navigator.clipboard) return void prompt(t("share"), link); // a page of another machine without encryption
    await navigator.clipboard.writeText(link);
    share.textContent = t("copied");
  } }, t("share"));
  fill(main, h("div", { class: "tools" },
    h("input", { id: "find", type: "search", placeholder: t("filter"), value: state.filter, "aria-label": t("filter"), oninput: (e) => { remember({ filter: e.target.value }); build(); } }),
    h("label", {}, t("smoothing"), smoothing),
    h("label", {}, t("x"), h("select", { onchange: (e) => { remember({ x: e.target.value, zoom: "" }); load([...charts.keys()]); } }, ["step", "time"].map((x) => h("option", { value: x, selected: state.x === x }, t(x))))),
    h("button", { class: "plain", "aria-pressed": String(state.log === "1"), onclick: (e) => { remember({ log: state.log === "1" ? "" : "1" }); e.target.setAttribute("aria-pressed", String(state.log === "1")); redraw(); } }, t("log")),
    h("button", { class: "plain", title: t("zoomHint"), onclick: () => options.onZoom(null) }, t("reset")), share), place);
  build();
  addEventListener("resize", redraw, { signal: context.signal });
  return { refresh, redraw };
}
