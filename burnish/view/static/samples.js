// Samples: step -> group -> trajectory -> token, with filters and a search over the whole run.

import { fill, h, number, seconds } from "./dom.js";
import { get, go, remember, state } from "./state.js";
import { firstLine, tokenStrip } from "./tokens.js";
import { t } from "./words.js";

const ROW = 58;

export function scoreColor(score, low, high) {
  if (score === null) return "var(--dim)";
  const share = high > low ? (score - low) / (high - low) : 0.5;
  return `color-mix(in srgb, var(--c2) ${Math.round(share * 100)}%, var(--bad))`;
}

export function virtualList(items, draw) {
  const inner = h("div", { style: { position: "relative", height: `${items.length * ROW}px` } });
  const list = h("div", { class: "card list", tabindex: 0 }, inner);
  let drawn = "";
  const update = () => {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 6), last = Math.min(items.length, first + Math.ceil((list.clientHeight || 700) / ROW) + 12);
    const range = `${first}:${last}`;
    if (range === drawn) return;
    drawn = range;
    const rows = [];
    for (let i = first; i < last; i += 1) { const row = draw(items[i]); row.style.top = `${i * ROW}px`; rows.push(row); }
    inner.replaceChildren(...rows);
  };
  list.addEventListener("scroll", update, { passive: true });
  requestAnimationFrame(() => { const current = items.findIndex((item) => item.isCurrent); if (current > 8) list.scrollTop = (current - 3) * ROW; drawn = ""; update(); });
  update();
  return list;
}

function longText(value, query, field) {
  if (value === null || value === undefined) return h("pre", { class: "dim" }, "–");
  if (typeof value !== "object" || !("cut" in value)) return h("pre", {}, typeof value === "string" ? value : JSON.stringify(value, null, 1));
  const pre = h("pre", {}, value.cut);
  let end = value.cut.length;
  const button = h("button", { class: "plain small", onclick: async () => {
    const part = await get("text", { ...query, field, start: end });
    pre.append(h("span", {}, part.text));
    end += part.text.length;
    if (end >= part.length || !part.text) button.remove();
  } }, `${t("more")} (${value.length} ${t("characters")})`);
  return [pre, button];
}

// Pictures arrive as checked PNG data: nothing of a run becomes a URL or markup.
function pictureStrip(media, run) {
  if (!media.length) return null;
  const one = async (figure, name) => {
    const found = await get("picture", { run, name }).catch((error) => ({ error: error.message }));
    if (found.error) { fill(figure, h("span", { class: "dim" }, found.error)); return; }
    const img = h("img", { alt: "", width: found.width, height: found.height });
    img.src = `data:image/png;base64,${found.png}`;
    fill(figure, img);
  };
  return h("div", { class: "pictures" }, media.map((item) => {
    const figures = item.files.map((name) => { const figure = h("span", {}); one(figure, name); return figure; });
    const place = item.offset === null ? "" : ` · ${t("position")} ${item.offset}, ${item.num_tokens} ${t("tokens")}`;
    return h("figure", {}, figures.length ? figures : h("span", { class: "dim" }, t("noPicture")), h("figcaption", { class: "dim" }, `${t(item.kind)}${place}`));
  }));
}

const ROLES = new Set(["assistant", "tool", "user", "system"]);

function roleName(role) { return ROLES.has(role) ? t(`role_${role}`) : role; }

function turnBox(role, title, tags, ...content) { return h("section", { class: `turn ${role}` }, h("header", {}, h("b", {}, title), tags.filter(Boolean).map((tag) => h("span", { class: "tag" }, tag))), content); }

function callBox(call) {
  const source = call.function || call, args = source.arguments ?? source.parameters ?? source.args ?? {};
  const { name, arguments: _a, parameters: _p, args: _r, ...rest } = source;
  return h("div", { class: "call" }, h("b", { class: "mono" }, name || "?"), h("pre", {}, typeof args === "string" ? args : JSON.stringify(args, null, 1)), Object.keys(rest).length > 0 && h("pre", { class: "dim" }, JSON.stringify(rest)));
}

async function trajectory(place, query, sample) {
  const record = await get("sample", query);
  const facts = [[t("score"), number(record.score)], [t("finish"), record.finish_reason], [t("length"), sample.length ?? `${sample.characters} ${t("characters")}`], [t("source"), record.data_source], ...Object.entries(record.extras).slice(0, 12).map(([name, value]) => [name, typeof value === "number" ? number(value) : JSON.stringify(value)])];
  const hasRewards = record.turns.some((turn) => turn.reward); // zeros everywhere: the score is of the whole trajectory
  const turns = record.turns.map((turn, i) => turnBox(turn.role, roleName(turn.role), [hasRewards && turn.reward !== null && turn.reward !== undefined && `${t("reward")} ${number(turn.reward)}`, turn.latency > 0 && `${t("latency")} ${seconds(turn.latency)}`, turn.finish_reason], longText(turn.text, query, `turn/${i}`), (turn.tool_calls || []).map((call) => (call && typeof call === "object" ? callBox(call) : null))));
  const strip = h("div", {}), media = record.media || [], end = sample.prompt_length ?? Infinity;
  const given = pictureStrip(media.filter((item) => !(item.offset >= end)), query.run), later = pictureStrip(media.filter((item) => item.offset >= end), query.run);
  fill(place, h("div", { class: "tools small" }, facts.map(([name, value]) => h("span", {}, h("span", { class: "dim" }, `${name} `), String(value ?? "–")))),
    record.problem && h("div", { class: "card", style: { borderColor: "var(--bad)", marginBottom: "10px" } }, h("b", {}, t("problem")), longText(record.problem, query, "problem")),
    h("div", { class: "card" }, turnBox("prompt", t("prompt"), [], longText(record.input, query, "input"), given), record.turns.length ? turns : turnBox("assistant", t("response"), [], longText(record.output, query, "output")), later && turnBox("tool", t("shownLater"), [], later), turnBox("prompt", t("truth"), [], longText(record.gts, query, "gts"))), strip);
  if (sample.length !== undefined) await tokenStrip(strip, query, sample.length);
  else fill(strip, h("p", { class: "dim" }, t("noTokens")));
}

// A step that is not over: what its conversations have done so far.
async function watchProgress(place, run, signal) {
  const answer = await get("progress", { run: run.id }).catch(() => ({ name: null }));
  if (signal.aborted) return;
  const isOpen = place.querySelector("details")?.open ?? false;
  if (answer.name === null || !answer.conversations) fill(place);
  else {
    const counts = `${answer.conversations} ${t("talks")} · ${answer.turns} ${t("turns")} · ${answer.tokens} ${t("tokens").toLowerCase()} · ${answer.calls} ${t("toolCalls")} · ${answer.waiting} ${t("nowWaiting")}`;
    const heads = h("tr", {}, [t("turns"), t("tokens"), t("toolCalls"), "", t("lastText")].map((name, i) => h("th", { class: i < 3 ? "num tight" : "" }, name)));
    const rows = answer.rows.map((one) => h("tr", {}, [one.turns, one.tokens, one.calls].map((count) => h("td", { class: "num tight" }, count)), h("td", { class: "tight" }, one.is_waiting ? h("span", { class: "tag warn" }, t("nowWaiting")) : one.failed > 0 && h("span", { class: "tag bad" }, `${one.failed} ${t("failed")}`)), h("td", { class: "mono" }, firstLine(one.last))));
    fill(place, h("details", { class: "card progress", open: isOpen }, h("summary", {}, h("b", {}, `${t("inProgress")} ${answer.name.replace("validation-", `${t("validationAt")} `)}`), " ", h("span", { class: "dim" }, counts)), h("div", { class: "scroll" }, h("table", { class: "data" }, heads, rows))));
  }
  setTimeout(() => watchProgress(place, run, signal), 3000);
}

function groupsOf(samples) {
  const groups = new Map();
  for (const sample of samples) { if (!groups.has(sample.uid)) groups.set(sample.uid, []); groups.get(sample.uid).push(sample); }
  return [...groups].map(([uid, rows]) => ({ uid, rows: rows.sort((a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity)) }));
}

export async function samplesPage(main, context) {
  const run = context.runs[0];
  let { steps } = await get("steps", { run: run.id });
  if (context.signal.aborted) return {};
  const progress = h("div", {});
  if (run.state === "running") watchProgress(progress, run, context.signal);
  if (!steps.length) {
    fill(main, context.choice && h("div", { class: "tools" }, context.choice), progress, h("p", { class: "empty" }, t("none")));
    return { refresh: async () => { if ((await get("steps", { run: run.id })).steps.length && !context.signal.aborted) context.reload(); } };
  }
  const wanted = Number(state.step || steps[steps.length - 1]);
  const step = steps.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best), steps[0]);
  const answer = await get("step", { run: run.id, step });
  if (context.signal.aborted) return {};
  const all = answer.samples, scores = all.map((s) => s.score).filter((s) => s !== null), low = Math.min(...scores), high = Math.max(...scores);
  const filters = context.filters, listPlace = h("div", {}), side = h("div", {}), detail = h("div", {});
  const lengthOf = (s) => s.length ?? s.characters;
  let groups = [], members = [], picked = null;
  const passes = (s) => (filters.min === "" || s.score >= Number(filters.min)) && (filters.max === "" || s.score <= Number(filters.max)) && (filters.minLength === "" || lengthOf(s) >= Number(filters.minLength)) && (filters.maxLength === "" || lengthOf(s) <= Number(filters.maxLength)) && (!filters.finish || s.finish_reason === filters.finish) && (!filters.source || s.data_source === filters.source) && (!filters.tool || s.tools.includes(filters.tool)) && (!filters.problem || s.problem);
  const choose = (group, row) => { remember({ step: String(step), group: group.uid, row: row === undefined ? "" : String(row) }); showGroup(group); redrawList(); };
  const facts = (s) => [`#${s.sample}`, `${lengthOf(s)} ${s.length === undefined ? t("characters") : t("tokens").toLowerCase()}`, s.finish_reason, s.advantages !== undefined && s.advantages !== null && `A ${number(s.advantages, 3)}`, s.num_turns > 1 && `${s.num_turns} ${t("turns")}`].filter(Boolean).join(" · ");
  const showGroup = (group) => {
    const numbers = group.rows.map((s) => s.score).filter((s) => s !== null), mean = numbers.reduce((a, b) => a + b, 0) / (numbers.length || 1);
    members = group.rows;
    picked = members.find((s) => String(s.row) === state.row) || members[0];
    const isEqual = numbers.length > 1 && Math.max(...numbers) - Math.min(...numbers) < 1e-9;
    fill(side, h("h2", {}, `${t("group")} `, h("span", { class: "mono dim" }, group.uid), "  ", h("span", { class: "tag" }, `${t("mean")} ${number(mean)}`), " ", isEqual && h("span", { class: "tag warn" }, t("equal"))),
      h("div", { class: "side" }, group.rows.map((s) => h("button", { class: "card", "aria-current": String(s === picked), onclick: () => choose(group, s.row) }, h("div", { class: "score", style: { color: scoreColor(s.score, low, high) } }, number(s.score)), h("div", { class: "small dim", title: t("advantageHint") }, facts(s)), h("pre", {}, s.response.trim())))));
    trajectory(detail, { run: run.id, step, row: picked.row }, picked).catch((error) => fill(detail, h("p", { class: "dim" }, error.message)));
  };
  const drawList = () => {
    groups = groupsOf(all.filter(passes)).map((group) => ({ ...group, isCurrent: group.uid === state.group }));
    const list = virtualList(groups, (group) => h("button", { class: "item", "aria-current": String(group.isCurrent), onclick: () => choose(group) },
      h("div", { class: "line" }, h("span", { class: "scores" }, group.rows.slice(0, 16).map((s) => h("i", { style: { background: scoreColor(s.score, low, high) } }))), h("span", { class: "small dim" }, `${number(group.rows.reduce((a, s) => a + (s.score ?? 0), 0) / group.rows.length, 3)}`), h("span", { class: "small dim" }, group.rows[0].data_source), group.rows.some((s) => s.problem) && h("span", { class: "tag bad" }, t("problem"))),
      h("div", { class: "text" }, firstLine(group.rows[0].prompt))));
    const top = listPlace.querySelector(".list")?.scrollTop;
    fill(listPlace, h("p", { class: "small dim" }, `${groups.length} ${t("groups")}, ${groups.reduce((a, g) => a + g.rows.length, 0)} ${t("trajectories")}`), groups.length ? list : h("p", { class: "empty" }, t("noMatch")));
    if (top !== undefined) list.scrollTop = top;
  };
  const drawMatches = (found, isAll) => {
    const rows = virtualList(found.map((match) => ({ ...match, isCurrent: match.step === step && String(match.row) === state.row })), (match) => h("button", { class: "item", "aria-current": String(match.isCurrent), onclick: () => go({ step: String(match.step), row: String(match.row), group: "" }) }, h("div", { class: "small dim" }, `${t("step")} ${match.step} · ${t("row")} ${match.row}`), h("div", { class: "text" }, firstLine(match.before), h("mark", {}, match.match), firstLine(match.after))));
    fill(listPlace, h("p", { class: "small dim" }, `${found.length} ${t("matches")}${isAll ? "" : ", …"}`), found.length > 0 && rows);
  };
  const search = async (text) => {
    filters.search = text ? { run: run.id, text, found: [], isAll: false } : null;
    if (!text) return drawList();
    fill(listPlace, h("p", { class: "small dim" }, t("searching")));
    const mine = filters.search;
    for (let before = ""; before !== null;) {
      const part = await get("search", { run: run.id, text, before });
      if (context.signal.aborted || filters.search !== mine) return;
      mine.found.push(...part.matches);
      before = mine.found.length < 500 ? part.next_step : null;
      mine.isAll = part.next_step === null;
      drawMatches(mine.found, mine.isAll);
    }
  };
  const isSearching = () => filters.search !== null && filters.search.run === run.id;
  const choice = (name, values) => h("label", {}, t(name), h("select", { onchange: (e) => { filters[name] = e.target.value; drawList(); } }, h("option", { value: "" }, t("all")), [...new Set([...values, filters[name]])].filter(Boolean).map((value) => h("option", { value, selected: filters[name] === value }, value))));
  const bound = (name, label) => h("input", { class: "short", type: "number", step: "any", placeholder: label, "aria-label": label, value: filters[name], onchange: (e) => { filters[name] = e.target.value; drawList(); } });
  const distinct = (values) => [...new Set(values)].filter(Boolean).sort().slice(0, 100);
  const move = (delta) => { const next = steps[steps.indexOf(step) + delta]; if (next !== undefined) go({ step: String(next), group: "", row: "" }); };
  const options = () => steps.slice().reverse().map((one) => h("option", { value: one, selected: one === step }, one));
  const stepChoice = h("select", { onchange: (e) => go({ step: e.target.value, group: "", row: "" }) }, options()), newest = h("button", { class: "plain pressing", hidden: true, onclick: () => go({ step: String(steps[steps.length - 1]), group: "", row: "" }) });
  fill(main, h("div", { class: "tools" }, context.choice,
    h("button", { class: "plain", "aria-label": t("previousStep"), onclick: () => move(-1) }, "←"), h("label", {}, t("step"), stepChoice), h("button", { class: "plain", "aria-label": t("nextStep"), onclick: () => move(1) }, "→"), newest,
    h("label", {}, t("score"), bound("min", t("min")), bound("max", t("max"))), h("label", {}, t("length"), bound("minLength", t("min")), bound("maxLength", t("max"))),
    choice("finish", distinct(all.map((s) => s.finish_reason))), choice("source", distinct(all.map((s) => s.data_source))), choice("tool", distinct(all.flatMap((s) => s.tools))),
    h("button", { class: "plain", title: t("problemHint"), "aria-pressed": String(filters.problem), onclick: (e) => { filters.problem = !filters.problem; e.target.setAttribute("aria-pressed", String(filters.problem)); drawList(); } }, t("problem")),
    h("input", { id: "find", type: "search", placeholder: t("search"), "aria-label": t("search"), value: isSearching() ? filters.search.text : "", onchange: (e) => search(e.target.value) })),
  progress, h("div", { class: "split" }, listPlace, h("div", {}, side, detail)));
  const redrawList = () => (isSearching() ? drawMatches(filters.search.found, filters.search.isAll) : drawList());
  drawList();
  const first = groups.find((g) => g.uid === state.group) || groups.find((g) => g.rows.some((s) => String(s.row) === state.row)) || groups[0];
  if (first) { remember({ step: state.step && String(step), group: first.uid }); showGroup(first); }
  redrawList();
  const stepGroup = (delta) => { const at = groups.findIndex((g) => g.uid === state.group), next = groups[at + delta]; if (next) choose(next); };
  const stepRow = (delta) => { const next = members[members.indexOf(picked) + delta], group = groups.find((g) => g.uid === state.group); if (next && group) choose(group, next.row); };
  // New steps are offered, and do not pull away what somebody reads.
  const refresh = async () => {
    const now = (await get("steps", { run: run.id })).steps;
    if (context.signal.aborted || now[now.length - 1] === steps[steps.length - 1]) return;
    steps = now;
    stepChoice.replaceChildren(...options());
    fill(newest, `${t("newest")} ${steps[steps.length - 1]}`);
    newest.hidden = false;
  };
  const keys = { ArrowLeft: () => move(-1), ArrowRight: () => move(1), j: () => stepGroup(1), k: () => stepGroup(-1), n: () => stepRow(1), p: () => stepRow(-1) };
  return { refresh, onkey: (key) => { keys[key]?.(); return key in keys; } };
}
