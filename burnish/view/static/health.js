// Health: alarms first, with what they mean and what to try.

import { fill, h, number, seconds } from "./dom.js";
import { get, go, joinNames, state } from "./state.js";
import { t } from "./words.js";

function lastSign(run) { return run.updated ? `${t("lastSign")} ${new Date(run.updated * 1000).toLocaleString(state.lang === "zh" ? "zh-CN" : "en-GB")}` : ""; }

function alarmCard(alarm, run, many) {
  const steps = alarm.steps.slice(-12).map((step) => h("button", { class: "plain small", onclick: () => go({ page: "samples", runs: joinNames([run.name]), step: String(step), group: "", row: "" }) }, String(step)));
  const value = alarm.metric ? `${alarm.metric} = ${number(alarm.value)}` : alarm.kind === "silent" ? seconds(alarm.value) : lastSign(run);
  return h("section", { class: `card alarm ${alarm.severity}` }, h("i", {}), h("div", {},
    h("h3", {}, alarm.title, h("span", { class: `tag ${alarm.severity === "critical" ? "bad" : alarm.severity === "warning" ? "warn" : ""}` }, t(alarm.severity)), h("span", { class: "tag" }, t(alarm.is_active ? "active" : "past")), many && h("span", { class: "tag" }, run.name), h("span", { class: "mono dim" }, value, alarm.threshold ? `  (${t("threshold")} ${number(alarm.threshold)})` : "")),
    h("p", {}, alarm.meaning), alarm.detail && h("p", { class: "mono" }, alarm.detail), h("p", {}, h("b", {}, `${t("remedy")}: `), alarm.remedy),
    steps.length > 0 && h("p", { class: "small dim" }, `${t("seenAt")} `, alarm.num_steps > steps.length ? "… " : "", steps.flatMap((step) => [step, " "]))));
}

function checkTable(checks) {
  const rows = checks.map((one) => h("tr", { class: one.metric ? "" : "dim" }, h("td", {}, one.title), h("td", { class: "mono" }, one.metric ?? t("notLogged")), h("td", { class: "num tight" }, one.metric ? number(one.value) : ""), h("td", { class: "num tight dim" }, one.threshold === null || !one.metric ? "" : `${one.is_low ? "<" : one.threshold === 0 ? ">" : "≥"} ${number(one.threshold)}`)));
  return h("details", { class: "card" }, h("summary", {}, t("checks"), " ", h("span", { class: "dim" }, `${checks.filter((one) => one.metric).length}`)), h("div", { class: "scroll" }, h("table", { class: "data" }, h("tr", {}, [t("alarm"), t("metric"), t("newestMean"), t("raisedAt")].map((name, i) => h("th", { class: i > 1 ? "num" : "" }, name))), rows)));
}

export async function healthPage(main, context) {
  const show = async (runs) => {
    const answers = await Promise.all(runs.map(async (run) => [run, { ...await get("health", { run: run.id, lang: state.lang }), ...await get("checks", { run: run.id, lang: state.lang }) }]));
    if (context.signal.aborted) return;
    const cards = answers.flatMap(([run, answer]) => answer.alarms.map((alarm) => alarmCard(alarm, run, answers.length > 1)));
    const isFine = answers.every(([, answer]) => !answer.alarms.some((alarm) => alarm.is_active));
    const notes = answers.filter(([, answer]) => answer.notes.length);
    const wasOpen = [...main.querySelectorAll("details")].map((one) => one.open);
    fill(main, isFine && h("div", { class: "card fine", style: { marginBottom: "12px" } }, h("b", {}, "✓"), t("fine")), cards,
      answers.map(([run, answer]) => [h("h2", {}, t("checked"), answers.length > 1 ? ` · ${run.name}` : ""), checkTable(answer.checks)]),
      notes.map(([run, answer]) => [h("h2", {}, t("notes"), answers.length > 1 ? ` · ${run.name}` : ""), h("div", { class: "card" }, h("pre", {}, answer.notes.join("\n")))]));
    main.querySelectorAll("details").forEach((one, i) => { one.open = wasOpen[i] ?? false; });
  };
  await show(context.runs);
  return { refresh: show };
}
