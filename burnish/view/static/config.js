// Memory and config: doctor's plan beside measured peaks, settings with changed keys first, checkpoints, command.

import { bytes, fill, h, number } from "./dom.js";
import { get, state } from "./state.js";
import { t } from "./words.js";

function planTable(plan) {
  const most = Math.max(...plan.phases.map((phase) => phase.bytes), 1);
  return h("table", { class: "data" }, plan.phases.map((phase) => h("tr", {}, h("td", {}, phase.phase), h("td", { class: "num" }, bytes(phase.bytes)), h("td", { style: { width: "45%" } }, h("div", { class: "meter", title: phase.parts.map((part) => `${part.role} ${part.part}: ${bytes(part.bytes)}`).join("\n") }, h("i", { style: { width: `${(100 * phase.bytes) / most}%` } }))))));
}

function planBox(memory) {
  const measured = memory.plan && Math.max(...Object.entries(memory.peaks).filter(([name]) => name.startsWith("perf/max_memory")).map(([, value]) => value));
  return h("div", { class: "card" }, h("h3", {}, `${t("memory")} · ${t("plan")}`), memory.plan ? [h("p", { class: "small dim" }, t("planFor").replace("{}", bytes(memory.plan.capacity))), planTable(memory.plan), measured > 0 && h("p", { class: "small dim" }, `${t("measuredMost")} ${number(measured)} GB`)] : h("p", { class: "dim" }, t("noPlan")));
}

function checkpointTable(files) {
  if (!files.checkpoints.length) return h("p", { class: "dim" }, t("noCheckpoints"));
  const rows = files.checkpoints.map((one) => h("tr", {}, h("td", { class: "tight" }, one.step, " ", one.is_latest && h("span", { class: "tag good" }, t("latest")), " ", one.is_best && h("span", { class: "tag good" }, t("best"))), h("td", { class: "tight" }, bytes(one.bytes)), h("td", { class: "mono" }, `burnish export ${one.path} OUT`)));
  return h("table", { class: "data" }, h("tr", {}, h("th", {}, t("step")), h("th", {}, t("size")), h("th", {}, t("export"))), rows);
}

export async function configPage(main, context) {
  const run = context.runs[0], top = h("div", { class: "grid", style: { gridTemplateColumns: "repeat(auto-fit, minmax(min(340px, 100%), 1fr))" } });
  const config = await get("config", { runs: context.runs.map((one) => one.id).join(","), lang: state.lang });
  let mode = context.runs.length > 1 ? "different" : "changed", wanted = "";
  const table = h("div", { class: "card scroll" }), list = h("div", {}), choices = ["changed", ...(context.runs.length > 1 ? ["different"] : []), "allKeys"];
  const drawRows = () => {
    const rows = config.rows.filter((row) => (mode === "allKeys" ? true : mode === "different" ? row.differs : row.is_changed)).filter((row) => row.key.includes(wanted));
    fill(list, rows.length ? h("table", { class: "data" }, h("tr", {}, h("th", {}, t("keyName")), config.runs.map((name) => h("th", {}, name)), h("th", {}, t("default"))), rows.map((row) => h("tr", { class: row.differs && mode !== "different" ? "differs" : "" }, h("td", { class: "mono", title: row.doc }, row.key, row.doc && h("div", { class: "small dim", style: { fontFamily: "var(--sans)" } }, row.doc)), row.values.map((value) => h("td", { class: "mono" }, value)), h("td", { class: "mono dim" }, row.default ?? "")))) : h("p", { class: "empty" }, t(mode === "different" && !wanted ? "noDifference" : "noMatch")));
  };
  const draw = () => {
    fill(table, h("div", { class: "tools" }, choices.map((one) => h("button", { class: "plain", "aria-pressed": String(mode === one), onclick: () => { mode = one; draw(); } }, t(one))), h("input", { id: "find", type: "search", placeholder: t("filterKeys"), "aria-label": t("filterKeys"), value: wanted, oninput: (e) => { wanted = e.target.value.trim(); drawRows(); } })), list);
    drawRows();
  };
  const refresh = async () => {
    const [memory, files] = await Promise.all([get("memory", { run: run.id }), get("files", { run: run.id })]), peaks = Object.entries(memory.peaks);
    if (context.signal.aborted) return files;
    fill(top, planBox(memory),
      h("div", { class: "card" }, h("h3", {}, t("measured")), peaks.length ? h("table", { class: "data" }, peaks.map(([name, value]) => h("tr", {}, h("td", { class: "mono" }, name), h("td", { class: "num" }, number(value))))) : h("p", { class: "dim" }, t("noPeaks"))),
      h("div", { class: "card" }, h("h3", {}, t("checkpoints")), checkpointTable(files), files.has_model && h("p", { class: "mono" }, h("span", { class: "dim" }, `${t("trainedModel")} `), `${files.path}/model`)));
    return files;
  };
  const files = await refresh();
  if (context.signal.aborted) return {};
  draw();
  fill(main, context.choice && h("div", { class: "tools" }, context.choice), top,
    h("h2", {}, t("settings")), table,
    h("h2", {}, t("command")), h("div", { class: "card" }, h("pre", {}, files.command.join("\n"))),
    h("h2", {}, t("environment")), h("div", { class: "card scroll" }, h("table", { class: "data" }, Object.entries(files.environment).map(([name, value]) => h("tr", {}, h("td", { class: "dim" }, name), h("td", { class: "mono" }, String(value)))))));
  return { refresh };
}
