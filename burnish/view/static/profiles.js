// Recordings of profilers: a table with links, and what a trace says.

import { bytes, fill, h, seconds } from "./dom.js";
import { embedded, get } from "./state.js";
import { t } from "./words.js";

function percent(share) { return `${(100 * share).toFixed(1)} %`; }

function summaryOf(one) {
  const longest = one.top[0]?.seconds || 1e-9;
  return [
    h("p", { class: "profile-facts" }, `${t(one.kind)} · ${seconds(one.seconds)} · ${t("idleShare")} ${percent(one.idle_share)}`),
    h("p", { class: "small dim" }, one.phases.slice(0, 12).map(([name, value]) => `${name} ${seconds(value)}`).join(" · ")),
    h("table", { class: "data" }, h("tr", {}, h("th", {}, t("longest")), h("th", { class: "num" }, t("time")), h("th", { class: "num" }, t("calls")), h("th", {})), one.top.map((entry) => h("tr", {}, h("td", { class: "mono" }, entry.name), h("td", { class: "num tight" }, seconds(entry.seconds)), h("td", { class: "num" }, entry.calls), h("td", { style: { width: "25%" } }, h("div", { class: "meter" }, h("i", { style: { width: `${(100 * entry.seconds) / longest}%` } })))))),
  ];
}

// The section of a run's profiles; null where it has none.
export async function profilesSection(run, opened) {
  const { profiles } = await get("profiles", { run: run.id }).catch(() => ({ profiles: [] }));
  if (!profiles.length) return null;
  const detail = h("div", { class: "profile-detail" });
  const open = async (name) => {
    opened.name = name;
    fill(detail, h("p", { class: "dim" }, "…"));
    try { fill(detail, h("h3", {}, name), summaryOf(await get("profile", { run: run.id, name }))); } catch (error) { fill(detail, h("p", { class: "dim" }, error.message)); }
  };
  const link = (one) => (embedded ? one.name : h("a", { href: `/profile/${run.id}/${one.name.split("/").map(encodeURIComponent).join("/")}`, download: true }, one.name));
  const rows = profiles.map((one) => h("tr", {}, h("td", { class: "mono" }, link(one)), h("td", { class: "num tight" }, bytes(one.bytes)), h("td", {}, one.is_trace && h("button", { class: "plain", onclick: () => open(one.name) }, t("summary")))));
  if (profiles.some((one) => one.name === opened.name)) await open(opened.name);
  return [h("h2", {}, t("profiles")), h("div", { class: "card wide" }, h("p", { class: "small dim" }, t("profilesHint")), h("table", { class: "data" }, rows), detail)];
}
