// Memory and config: doctor's plan beside measured peaks, settings with changed keys first, checkpoints, command.

import { bytes, fill, h, number } from "./dom.js";
import { get, state } from "./state.js";
import { t } from "./words.js";

function planTable(plan) {
  const most = Math.max(...plan.phases.map((phase) => phase.bytes), 1);
  return h("table", { class: "data" }, plan.phases.map((phase) => h("tr", {}, h("td", {}, phase.phase), h("td", { class: "num" }, bytes(phase.bytes)), h("td", { style: { width: "45%" } }, h("div", { class: "meter", title: phase.parts.map((part) => `${part.role} ${part.part}: ${bytes(part.bytes)}`).join("\n") }, h("i", { style: { width: `${(100 * phase.bytes) / most}%` } }))))));
}

export async function configPage(main, context) {
  const run = context.runs[0];
  const [memory, config, files] = await Promise.all([get("memory", { run: run.id }), get("config", { runs: context.runs.map((one) => one.id).join(","), lang: state.lang }), get("files", { run: run.id })]);
  let mode = context.runs.length > 1 ? "different" : "changed";
  const table = h("div", { class: "card scroll" }), choices = ["changed", ...(context.runs.length > 1 ? ["different"] : []), "allKeys"];
  const draw = () => {
    const rows = config.rows.filter((row) => (mode === "allKeys" ? true : mode === "different" ? row.differs : row.is_changed));
    fill(table, h("div", { class: "tools" }, choices.map((one) => h("button", { class: "plain", "aria-pressed": String(mode === one), onclick: () => { mode = one; draw(); } }, t(one)))),
      rows.length ? h("table", { class: "data" }, h("tr", {}, h("th", {}, t("keyName")), config.runs.map((name) => h("th", {}, name)), h("th", {}, t("default"))), rows.map((row) => h("tr", { class: row.differs && mode !== "different" ? "differs" : "" }, h("td", { class: "mono", title: row.doc }, row.key, row.doc && h("div", { class: "small dim", style: { fontFamily: "var(--sans)" } }, row.doc)), row.values.map((value) => h("td", { class: "mono" }, value)), h("td", { class: "mono dim" }, row.default ?? "")))) : h("p", { class: "empty" }, "–"));
  };
  draw();
  const exportLine = (checkpoint) => `burnish export ${checkpoint.path} OUT`;
  fill(main, h("div", { class: "grid", style: { gridTemplateColumns: "repeat(auto-fit, minmax(340px, 1fr))" } },
    h("div", { class: "card" }, h("h3", {}, `${t("memory")} · ${t("plan")}`), memory.plan ? planTable(memory.plan) : h("p", { class: "dim" }, t("noPlan"))),
    h("div", { class: "card" }, h("h3", {}, t("measured")), Object.keys(memory.peaks).length ? h("table", { class: "data" }, Object.entries(memory.peaks).map(([name, value]) => h("tr", {}, h("td", { class: "mono" }, name), h("td", { class: "num" }, number(value))))) : h("p", { class: "dim" }, t("noPeaks"))),
    h("div", { class: "card" }, h("h3", {}, t("checkpoints")), files.checkpoints.length ? h("table", { class: "data" }, h("tr", {}, h("th", {}, t("step")), h("th", {}, t("size")), h("th", {}, t("export"))), files.checkpoints.map((one) => h("tr", {}, h("td", { class: "tight" }, one.step, " ", one.is_latest && h("span", { class: "tag good" }, t("latest")), " ", one.is_best && h("span", { class: "tag good" }, t("best"))), h("td", { class: "tight" }, bytes(one.bytes)), h("td", { class: "mono" }, exportLine(one))))) : h("p", { class: "dim" }, t("noCheckpoints")), files.has_model && h("p", { class: "mono" }, h("span", { class: "dim" }, `${t("trainedModel")} `), `${files.path}/model`))),
  h("h2", {}, t("settings")), table,
  h("h2", {}, t("command")), h("div", { class: "card" }, h("pre", {}, files.command.join("\n"))),
  h("h2", {}, t("environment")), h("div", { class: "card scroll" }, h("table", { class: "data" }, Object.entries(files.environment).map(([name, value]) => h("tr", {}, h("td", { class: "dim" }, name), h("td", { class: "mono" }, String(value)))))));
  return {};
}
