// The page: header with runs and tabs, routing by the URL's hash, live updates, keyboard.

import { configPage } from "./config.js";
import { curvesPage } from "./curves.js";
import { fill, h, hideTip, number, seconds } from "./dom.js";
import { healthPage } from "./health.js";
import { samplesPage } from "./samples.js";
import { embedded, get, go, hashOf, joinNames, readHash, remember, splitNames, state } from "./state.js";
import { timelinePage } from "./timeline.js";
import { t } from "./words.js";

const PAGES = { curves: curvesPage, health: healthPage, samples: samplesPage, timeline: timelinePage, config: configPage };
const POLL = 2000, MANY_RUNS = 8, NUM_COLORS = 8;
const main_ = document.getElementById("main"), top_ = document.getElementById("top");
const filters = { min: "", max: "", minLength: "", maxLength: "", finish: "", source: "", tool: "", problem: false, search: null };
let allRuns = [], current = {}, shown = "", leaving = new AbortController(), alarms = { critical: 0, warning: 0 }, isLost = false, runFilter = "";

// The runs that the URL names, else the newest. Each has a color of its own, which stays while others are added.
function chosenRuns() {
  const names = splitNames(state.runs), isChosen = (run) => names.includes(run.name) || names.includes(String(run.id));
  const found = allRuns.filter(isChosen), runs = found.length ? found : allRuns.slice(0, 1), taken = new Set();
  for (const run of runs) {
    run.color = run.id % NUM_COLORS;
    while (taken.has(run.color)) run.color = run.color + 1 === NUM_COLORS && taken.size < NUM_COLORS ? 0 : run.color + 1;
    taken.add(run.color);
  }
  return runs;
}

// The run of pages that show one: the first of those that are chosen, or the one that was picked there.
function shownFirst(runs) {
  const one = runs.find((run) => run.name === state.one);
  return one ? [one, ...runs.filter((run) => run !== one)] : runs;
}

function toggleRun(run) {
  const chosen = chosenRuns(), isOn = chosen.includes(run);
  const next = isOn ? chosen.filter((one) => one !== run) : [...chosen, run];
  go({ runs: joinNames((next.length ? next : [run]).map((one) => one.name)), step: "", group: "", row: "" });
}

function progress(run) {
  const words = [`${run.step}${run.total_steps ? `/${run.total_steps}` : ""}`, t(run.state)];
  if (run.seconds_left) words.push(`${seconds(run.seconds_left)} ${t("left")}`);
  return words.join(" · ");
}

function chip(run, chosen) {
  return h("button", { class: "chip", title: [run.path, run.problem].filter(Boolean).join("\n"), "aria-pressed": String(chosen.includes(run)), onclick: () => toggleRun(run) }, h("span", { class: `dot bg${(run.color ?? run.id) % NUM_COLORS} ${run.state === "running" ? "pulse" : ""}` }), h("span", { class: "name" }, run.name), h("span", { class: `meta state-${run.state}` }, progress(run)));
}

// Many runs: a list with a filter. It is made once, so that what is typed there stays when numbers change.
const picker = h("details", { class: "picker", hidden: true });
function drawPicker(chosen) {
  picker.hidden = allRuns.length <= MANY_RUNS;
  if (picker.hidden) return;
  if (!picker.firstChild || picker.lang !== state.lang) {
    picker.lang = state.lang;
    fill(picker, h("summary", {}), h("div", { class: "card" }, h("input", { type: "search", placeholder: t("filterRuns"), "aria-label": t("filterRuns"), value: runFilter, oninput: (e) => { runFilter = e.target.value; drawPicker(chosenRuns()); } }), h("div", { class: "scroll" })));
  }
  const wanted = runFilter.toLowerCase(), shown_ = allRuns.filter((run) => `${run.name} ${run.path} ${t(run.state)}`.toLowerCase().includes(wanted));
  fill(picker.querySelector("summary"), `${allRuns.length} ${t("runs")}`);
  fill(picker.querySelector(".scroll"), h("table", { class: "data" }, h("tr", {}, [t("run"), t("state"), t("step"), t("bestValidation")].map((name) => h("th", {}, name))), shown_.map((run) => h("tr", {}, h("td", {}, chipName(run, chosen)), h("td", { class: `tight state-${run.state}` }, t(run.state)), h("td", { class: "num tight" }, `${run.step}${run.total_steps ? `/${run.total_steps}` : ""}`), h("td", { class: "num tight" }, run.validation ? `${number(run.validation.best)} (${t("step")} ${run.validation.best_step})` : "")))));
}

function chipName(run, chosen) {
  return h("label", {}, h("input", { type: "checkbox", checked: chosen.includes(run), onchange: () => toggleRun(run) }), " ", run.name);
}

function drawHeader() {
  const chosen = chosenRuns(), isMany = allRuns.length > MANY_RUNS;
  const badge = alarms.critical || alarms.warning, controls = () => [...top_.querySelectorAll("button, input, summary")];
  const focused = controls().indexOf(document.activeElement); // stays where it was
  fill(top_, h("div", { class: "bar" }, h("span", { class: "brand" }, "burnish"),
    h("nav", { "aria-label": t("pages") }, Object.keys(PAGES).map((page) => h("button", { "aria-current": page === state.page ? "page" : null, onclick: () => go({ page }) }, t(page), page === "health" && badge > 0 && h("span", { class: `count ${alarms.critical ? "" : "warning"}`, title: t("activeAlarms") }, badge)))),
    h("span", { class: "grow" }), embedded && h("span", { class: "tag" }, t("exported")),
    h("span", { class: "switches" }, h("button", { class: "plain", onclick: flipLanguage, "aria-label": t("language"), title: t("keys") }, state.lang === "zh" ? "English" : "中文"), h("button", { class: "plain", onclick: flipTheme, title: t("keys") }, t("theme")))),
  h("div", { class: "runs" }, (isMany ? chosen : allRuns).map((run) => chip(run, chosen)), isMany ? picker : null, isLost && h("span", { class: "state-hung" }, t("lost"))));
  drawPicker(chosen);
  if (focused >= 0) controls()[focused]?.focus({ preventScroll: true });
}

function flipTheme() {
  const isDark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  remember({ theme: isDark ? "light" : "dark" });
  document.documentElement.dataset.theme = state.theme;
  current.redraw?.();
}

function flipLanguage() { go({ lang: state.lang === "zh" ? "en" : "zh" }); }

async function countAlarms() {
  const answers = await Promise.all(chosenRuns().map((run) => get("health", { run: run.id, lang: state.lang }).catch(() => ({ alarms: [] }))));
  const active = answers.flatMap((answer) => answer.alarms).filter((alarm) => alarm.is_active);
  alarms = { critical: active.filter((alarm) => alarm.severity === "critical").length, warning: active.filter((alarm) => alarm.severity === "warning").length };
}

async function show() {
  readHash();
  const wanted = hashOf();
  if (wanted === shown) return;
  shown = wanted;
  leaving.abort();
  leaving = new AbortController();
  hideTip();
  if (!(state.page in PAGES)) state.page = "curves";
  document.documentElement.lang = state.lang === "zh" ? "zh" : "en";
  if (state.theme) document.documentElement.dataset.theme = state.theme;
  drawHeader();
  const page = PAGES[state.page];
  try {
    const runs = chosenRuns(), signal = leaving.signal;
    current = (await page(main_, { runs: shownFirst(runs), choice: runChoice(runs), filters, signal, reload })) || {};
  } catch (error) {
    fill(main_, h("p", { class: "empty" }, error.message));
    current = {};
  }
  main_.dataset.ready = state.page;
  shown = hashOf();
  countAlarms().then(drawHeader);
}

function reload() { shown = ""; show(); }

// Pages that show one run say which, where several are chosen.
function runChoice(runs) {
  if (runs.length < 2) return null;
  const first = shownFirst(runs)[0];
  return h("label", {}, t("run"), h("select", { onchange: (e) => go({ one: e.target.value, step: "", group: "", row: "" }) }, runs.map((run) => h("option", { value: run.name, selected: run === first }, run.name))));
}

async function poll() {
  const signs = (runs) => JSON.stringify(runs.map((run) => [run.name, run.step, run.state, run.updated, run.problem]));
  try {
    const before = allRuns, wasLost = isLost, chosenBefore = signs(chosenRuns());
    allRuns = (await get("runs")).runs;
    isLost = false;
    if (signs(allRuns) === signs(before) && !wasLost) return;
    if (signs(chosenRuns()) !== chosenBefore || wasLost) {
      await current.refresh?.(chosenRuns());
      await countAlarms();
    }
    drawHeader();
  } catch {
    isLost = true;
    drawHeader();
  }
}

function onKey(event) {
  if (/^(input|select|textarea)$/i.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  const pages = Object.keys(PAGES), number_ = Number(event.key);
  if (number_ >= 1 && number_ <= pages.length) go({ page: pages[number_ - 1] });
  else if (event.key === "/") { event.preventDefault(); document.getElementById("find")?.focus(); }
  else if (event.key === "t") flipTheme();
  else if (event.key === "l") flipLanguage();
  else if (current.onkey?.(event.key)) event.preventDefault();
}

async function begin() {
  readHash();
  allRuns = (await get("runs")).runs;
  addEventListener("hashchange", show);
  addEventListener("keydown", onKey);
  await show();
  if (!embedded) setInterval(() => { if (!document.hidden) poll(); }, POLL);
}

begin().catch((error) => fill(main_, h("p", { class: "empty" }, error.message)));
