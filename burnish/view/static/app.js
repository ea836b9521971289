// The page: header with runs and tabs, routing by the URL's hash, live updates, keyboard.

import { configPage } from "./config.js";
import { curvesPage } from "./curves.js";
import { fill, h, hideTip, seconds } from "./dom.js";
import { healthPage } from "./health.js";
import { samplesPage } from "./samples.js";
import { embedded, get, go, hashOf, readHash, remember, state } from "./state.js";
import { timelinePage } from "./timeline.js";
import { t } from "./words.js";

const PAGES = { curves: curvesPage, health: healthPage, samples: samplesPage, timeline: timelinePage, config: configPage };
const POLL = 2000;
const main_ = document.getElementById("main"), top_ = document.getElementById("top");
const filters = { min: "", max: "", minLength: "", finish: "", source: "", tool: "", problem: false };
let allRuns = [], current = {}, shown = "", leaving = new AbortController(), alarms = { critical: 0, warning: 0 };

function chosenRuns() {
  const ids = state.runs.split(",").filter(Boolean).map(Number), found = allRuns.filter((run) => ids.includes(run.id));
  return found.length ? found : allRuns.slice(0, 1);
}

function toggleRun(run) {
  const ids = chosenRuns().map((one) => one.id), isOn = ids.includes(run.id);
  const next = isOn ? ids.filter((id) => id !== run.id) : [...ids, run.id];
  go({ runs: (next.length ? next : [run.id]).join(","), step: "", group: "", row: "" });
}

function progress(run) {
  const words = [`${run.step}${run.total_steps ? `/${run.total_steps}` : ""}`, t(run.state)];
  if (run.seconds_left) words.push(`${seconds(run.seconds_left)} ${t("left")}`);
  return words.join(" · ");
}

function drawHeader() {
  const chosen = chosenRuns();
  const badge = alarms.critical || alarms.warning;
  fill(top_, h("div", { class: "bar" }, h("span", { class: "brand" }, "burnish"),
    h("nav", { "aria-label": "pages" }, Object.keys(PAGES).map((page) => h("button", { "aria-current": page === state.page ? "page" : null, onclick: () => go({ page }) }, t(page), page === "health" && badge > 0 && h("span", { class: `count ${alarms.critical ? "" : "warning"}` }, badge)))),
    h("span", { class: "grow" }), embedded && h("span", { class: "tag" }, t("exported")),
    h("button", { class: "plain", onclick: flipLanguage, "aria-label": "language" }, state.lang === "zh" ? "English" : "中文"), h("button", { class: "plain", onclick: flipTheme, title: t("keys") }, t("theme"))),
  h("div", { class: "runs" }, allRuns.map((run) => h("button", { class: "chip", title: run.path, "aria-pressed": String(chosen.includes(run)), onclick: () => toggleRun(run) }, h("span", { class: `dot bg${run.id % 8} ${run.state === "running" ? "pulse" : ""}` }), run.name, h("span", { class: `meta state-${run.state}` }, progress(run))))));
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
  document.documentElement.lang = state.lang === "zh" ? "zh" : "en";
  if (state.theme) document.documentElement.dataset.theme = state.theme;
  drawHeader();
  const page = PAGES[state.page] || curvesPage;
  try {
    current = (await page(main_, { runs: chosenRuns(), filters, signal: leaving.signal })) || {};
  } catch (error) {
    fill(main_, h("p", { class: "empty" }, error.message));
    current = {};
  }
  main_.dataset.ready = state.page;
  shown = hashOf();
  countAlarms().then(drawHeader);
}

async function poll() {
  try {
    const before = JSON.stringify(allRuns.map((run) => [run.step, run.state, run.updated]));
    allRuns = (await get("runs")).runs;
    if (JSON.stringify(allRuns.map((run) => [run.step, run.state, run.updated])) !== before) {
      await current.refresh?.();
      await countAlarms();
      drawHeader();
    }
  } catch { fill(top_, h("div", { class: "bar state-hung" }, t("lost"))); }
}

function onKey(event) {
  if (/^(input|select|textarea)$/i.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  const pages = Object.keys(PAGES), number_ = Number(event.key);
  if (number_ >= 1 && number_ <= pages.length) go({ page: pages[number_ - 1] });
  else if (event.key === "/") { event.preventDefault(); document.getElementById("find")?.focus(); }
  else if (event.key === "t") flipTheme();
  else if (event.key === "l") flipLanguage();
  else current.onkey?.(event.key);
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
