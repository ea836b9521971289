// Tokens: a strip of a trajectory's tokens, colored by what they were trained with. Pages are loaded as they scroll into view.

import { cssColor, fill, h, hideTip, number, sharpCanvas, showTip, tipTable, visible } from "./dom.js";
import { get, remember, state } from "./state.js";
import { t } from "./words.js";

const PAGE = 512;
const DIVERGING = new Set(["advantages", "values", "token_level_rewards"]);
const SCALES = { entropys: [0, 3], rollout_log_probs: [-6, 0], old_log_probs: [-6, 0], ref_log_prob: [-6, 0] };
const SAMPLED_BIT = 1, TRAINED_BIT = 2;

function mix(color, share) { return `color-mix(in srgb, ${color} ${Math.round(Math.min(1, share) * 62)}%, transparent)`; }

export function tokenColor(column, value, scale) {
  if (value === null || value === undefined) return "";
  if (column === "flags") return mix(value & TRAINED_BIT ? "var(--c2)" : value & SAMPLED_BIT ? "var(--bad)" : "var(--dim)", value & SAMPLED_BIT ? 0.5 : 0.25);
  if (column === "versions") return value < 0 ? "" : mix(`var(--c${value % 8})`, 0.5);
  if (column === "ratio" || column === "importance_weights") { const gap = Math.log(Math.max(value, 1e-9)); return Math.abs(gap) < 1e-4 ? "" : mix(gap > 0 ? "var(--c1)" : "var(--bad)", Math.sqrt(Math.abs(gap)) * 1.2); }
  if (DIVERGING.has(column)) return mix(value >= 0 ? "var(--c2)" : "var(--bad)", Math.abs(value) / (scale || 1));
  const [low, high] = SCALES[column] || [0, 1];
  return mix("var(--c4)", column.includes("log_prob") ? (value - high) / (low - high) : (value - low) / (high - low));
}

function legend(column, scale, page) {
  if (column === "versions") {
    const found = [...new Set(page.columns.versions || [page.version])].filter((one) => one !== null && one >= 0).sort((a, b) => a - b).slice(0, 12);
    return h("span", { class: "legend" }, found.map((one) => h("span", {}, h("i", { class: `dot bg${one % 8}` }), one)));
  }
  if (column === "flags") return h("span", { class: "legend" }, ["trained", "sampled", "given"].map((name, i) => h("span", {}, h("i", { class: ["bg2", "bg0", "bg7"][i], style: { display: "inline-block", width: "10px", height: "10px", borderRadius: "2px", marginRight: "4px" } }), t(name))));
  const [low, high] = DIVERGING.has(column) ? [-scale, scale] : column === "ratio" || column === "importance_weights" ? [0.5, 2] : SCALES[column] || [0, 1];
  const bar = h("canvas", {});
  queueMicrotask(() => {
    if (!bar.isConnected) return;
    const { pen, width } = sharpCanvas(bar, 10);
    const probe = h("span", {});
    document.body.append(probe);
    for (let i = 0; i < 60; i += 1) { probe.style.backgroundColor = tokenColor(column, low + ((high - low) * i) / 59, scale) || "transparent"; pen.fillStyle = getComputedStyle(probe).backgroundColor; pen.fillRect((i * width) / 60, 0, width / 60 + 1, 10); }
    probe.remove();
  });
  return h("span", { class: "legend" }, number(low, 2), bar, number(high, 2));
}

function tokenTip(page, i) {
  const rows = [[t("position"), page.start + i], ["id", page.ids[i]]];
  if (page.flags) rows.push(["", t(page.flags[i] & TRAINED_BIT ? "trained" : page.flags[i] & SAMPLED_BIT ? "sampled" : "given")]);
  for (const [name, column] of Object.entries(page.columns || {})) rows.push([t(name), number(column[i], 5)]);
  if (page.columns && !page.columns.versions && page.version !== null) rows.push([t("versions"), page.version]);
  const top = page.alternatives?.[i] || [];
  return [h("div", { class: "mono" }, JSON.stringify(page.texts[i])), tipTable(rows), top.length > 0 && [h("div", { class: "dim small" }, t("alternatives")), tipTable(top.map(([text, p]) => [h("span", { class: "mono" }, JSON.stringify(text)), `${(100 * Math.exp(p)).toFixed(1)} %`]))]];
}

export async function tokenStrip(place, query, length) {
  let scale = 1, changed = new Set();
  const pages = new Map(), strip = h("div", { class: "card strip", tabindex: 0, "aria-label": t("tokens") });
  const head = h("div", { class: "tools" });
  const paint = (page) => page.element.querySelectorAll("[data-i]").forEach((span) => {
    const i = Number(span.dataset.i), column = state.color === "flags" ? page.flags : page.columns[state.color] || (state.color === "versions" ? page.flags.map((f) => (f & SAMPLED_BIT ? page.version : -1)) : null);
    const isMeant = state.color === "flags" || page.flags?.[i] & SAMPLED_BIT; // what the environment gave has none of the other numbers
    span.style.backgroundColor = column && isMeant ? tokenColor(state.color, column[i], scale) : "";
  });
  const span = (page, i) => {
    const flags = page.flags ? page.flags[i] : -1, kind = flags === -1 ? "promptpart" : flags & TRAINED_BIT ? "" : flags & SAMPLED_BIT ? "untrained" : "given";
    return h("span", { "data-i": i, class: `${kind}${changed.has(page.start + i) ? " changed" : ""}` }, page.texts[i].replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t") || "∅");
  };
  const show = async (element) => {
    const number_ = Number(element.dataset.page);
    if (pages.has(number_)) return;
    pages.set(number_, null);
    try {
      const page = await get("tokens", { ...query, start: number_ * PAGE, count: PAGE });
      page.element = element;
      pages.set(number_, page);
      element.replaceChildren(...page.ids.map((_, i) => span(page, i)));
      element.style.minHeight = "";
      if (number_ === 0) { const size = Math.max(0, ...(page.columns.advantages || []).map(Math.abs)); scale = size > 1e-6 ? size : 1; drawHead(page); }
      paint(page);
    } catch (error) { pages.delete(number_); fill(element, h("span", { class: "dim" }, error.message)); }
  };
  const hide = (element) => {
    const number_ = Number(element.dataset.page);
    if (!pages.get(number_)) return;
    element.style.minHeight = `${element.offsetHeight}px`;
    element.replaceChildren();
    pages.delete(number_);
  };
  const watcher = new IntersectionObserver((entries) => entries.forEach((entry) => (entry.isIntersecting ? show(entry.target) : hide(entry.target))), { root: strip, rootMargin: "1200px" });
  const drawHead = (page) => {
    const columns = [...["advantages", "ratio", "rollout_log_probs", "old_log_probs", "entropys", "values", "ref_log_prob", "token_level_rewards", "importance_weights"].filter((name) => page.columns[name]), "versions", "flags"];
    const color = columns.includes(state.color) ? state.color : columns[0];
    if (color !== state.color) remember({ color });
    const choice = h("select", { "aria-label": t("color"), onchange: (e) => { remember({ color: e.target.value }); pages.forEach((one) => one && paint(one)); drawHead(page); } }, columns.map((name) => h("option", { value: name, selected: name === state.color }, t(name))));
    fill(head, h("label", {}, t("color"), choice), legend(state.color, scale, page), h("button", { class: "plain", onclick: compare }, t("difference")), h("button", { class: "plain", onclick: withPrompt }, t("showPrompt")), note, h("span", { class: "dim small" }, `${length} ${t("tokens").toLowerCase()}`));
  };
  const note = h("span", { class: "small" });
  const compare = async () => {
    const answer = await get("difference", query);
    changed = new Set(answer.changed || []);
    fill(note, answer.is_known ? (changed.size ? `${changed.size}: ${t("drifted")}` : t("exact")) : "–");
    pages.forEach((page) => { if (page) { page.element.replaceChildren(...page.ids.map((_, i) => span(page, i))); paint(page); } });
  };
  const withPrompt = async (event) => {
    event.target.disabled = true;
    const page = await get("tokens", { ...query, part: "prompt", start: 0, count: 4096 }); // as the export has it
    const element = h("div", { class: "page" }, page.ids.map((_, i) => span(page, i)));
    element.addEventListener("pointerover", (e) => { if (e.target.dataset?.i) showTip(e, tokenTip(page, Number(e.target.dataset.i))); });
    strip.prepend(element);
  };
  let marked = null; // the token whose numbers are shown by the keyboard
  const mark = (element) => { marked?.classList.remove("on"); marked = element; marked?.classList.add("on"); };
  const tipOf = (element, event) => {
    const page = pages.get(Number(element.closest(".page")?.dataset.page));
    if (page && element.dataset.i) showTip(event, tokenTip(page, Number(element.dataset.i)));
  };
  strip.addEventListener("pointerover", (event) => tipOf(event.target, event));
  strip.addEventListener("pointerleave", hideTip);
  strip.addEventListener("blur", () => { mark(null); hideTip(); });
  strip.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation(); // else it is a step of the run
    const all = [...strip.querySelectorAll(".page[data-page] [data-i]")], next = all[marked?.isConnected ? all.indexOf(marked) + move : 0];
    if (!next) return;
    mark(next);
    next.scrollIntoView({ block: "nearest" });
    const box = next.getBoundingClientRect();
    tipOf(next, { clientX: box.left, clientY: box.bottom });
  });
  for (let start = 0; start < length; start += PAGE) {
    const rest = Math.min(PAGE, length - start);
    const element = h("div", { class: "page", "data-page": start / PAGE, style: { minHeight: `${Math.ceil(rest / 22) * 26}px` } });
    strip.append(element);
    watcher.observe(element);
  }
  fill(place, h("h2", { style: { marginTop: "22px" } }, t("tokens")), head, strip);
}

export function firstLine(text) {
  // Excerpts in lists: markers of the chat template tell nothing there.
  return visible(text).replace(/<\|?[\w/ ]{1,24}\|?>/g, " ").replace(/\s+/g, " ").trim();
}
