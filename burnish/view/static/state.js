// What the page shows, kept in the URL's hash so that a link shares it; and requests to the server, or to the data of an export.

const EMBEDDED = document.getElementById("embedded");
export const embedded = EMBEDDED ? JSON.parse(EMBEDDED.textContent) : null;
export const state = { page: "curves", runs: "", one: "", x: "step", log: "", smooth: "0.6", zoom: "", filter: "", step: "", group: "", row: "", color: "advantages", lang: "", theme: "" };
const INITIAL = { ...state };

export function readHash() {
  Object.assign(state, INITIAL);
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (name in state) state[name] = value;
  if (!state.lang) state.lang = navigator.language?.startsWith("zh") ? "zh" : "en";
}

export function hashOf(changes = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...state, ...changes })) {
    if (value !== INITIAL[name] && value !== "" && value !== null && value !== undefined) query.set(name, value);
  }
  return `#${query}`;
}

// Names of runs in one value.
export function joinNames(names) { return names.map((name) => name.replace(/[%,]/g, encodeURIComponent)).join(","); }

export function splitNames(text) {
  return text.split(",").filter(Boolean).map((name) => { try { return decodeURIComponent(name); } catch { return name; } });
}

export function go(changes) { location.hash = hashOf(changes); }

export function remember(changes) {
  Object.assign(state, changes);
  history.replaceState(null, "", hashOf());
}

function embeddedAnswer(name, query) {
  if (name === "metrics" && query.names !== undefined) {
    const curves = embedded.curves[query.run] || {};
    return { curves: Object.fromEntries(query.names.split(",").map((one) => [one, curves[one] || []])) };
  }
  if (name === "search") return searchEmbedded(query);
  const key = `${name}?${Object.keys(query).sort().map((one) => `${one}=${query[one]}`).join("&")}`;
  if (key in embedded.answers) return structuredClone(embedded.answers[key]);
  if (name === "config") return configOf(query);
  throw new Error(embedded.missing);
}

// Some runs of the table of all, in any order.
function configOf(query) {
  const ids = query.runs.split(",").map(Number), names = embedded.answers["runs?"].runs.map((run) => run.name);
  const all = embedded.answers[`config?lang=${query.lang}&runs=${names.map((_, i) => i).join(",")}`];
  if (!all || ids.some((id) => id >= all.runs.length)) throw new Error(embedded.missing);
  const rows = all.rows.map((row) => {
    const values = ids.map((id) => row.values[id]);
    return { ...row, values, differs: new Set(values).size > 1, is_changed: row.default !== null && values.some((value) => value !== row.default) };
  });
  return { runs: ids.map((id) => all.runs[id]), rows };
}

function searchEmbedded(query) {
  const needle = String(query.text).toLowerCase(), matches = [];
  for (const [key, record] of Object.entries(embedded.answers)) {
    const found = /^sample\?row=(\d+)&run=(\d+)&step=(\d+)$/.exec(key);
    if (!found || Number(found[2]) !== Number(query.run)) continue;
    const text = [record.output, record.input].map((part) => part?.cut ?? part ?? "").join("\n"), place = text.toLowerCase().indexOf(needle);
    if (place >= 0) matches.push({ step: Number(found[3]), row: Number(found[1]), before: text.slice(Math.max(0, place - 60), place), match: text.slice(place, place + needle.length), after: text.slice(place + needle.length, place + needle.length + 60) });
  }
  return { matches, next_step: null };
}

export async function get(name, query = {}) {
  const words = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  if (embedded) return embeddedAnswer(name, Object.fromEntries(words.filter(([word]) => word !== "lang" || name !== "runs")));
  const response = await fetch(`/api/${name}?${new URLSearchParams(words)}`, { credentials: "same-origin" });
  const answer = await response.json().catch(() => ({ error: response.statusText }));
  if (!response.ok) throw new Error(answer.error || response.statusText);
  return answer;
}
