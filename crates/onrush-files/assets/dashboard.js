// The dashboard. The server has rendered the totals since its start, and says in each element what
// it shows. This fetches the metrics now and then and shows the change since the last time.

const EVERY_MS = 2000;
/** The values of a curve: two minutes. */
const CURVE = 60;

/** Samples of the text format of Prometheus: lines `name{labels} value`. */
function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (found) samples.push({ name: found[1], labels: found[2] ?? "", value: Number(found[3]) });
  }
  return samples;
}

const select = (samples, name, where) => samples.filter((sample) => (
  sample.name === name && sample.labels.includes(where)));

const sum = (samples) => samples.reduce((total, { value }) => total + value, 0);

/** A quantile of what a histogram has counted between two times. NaN: nothing. */
function quantile(before, now, name, where, part) {
  const counts = new Map();
  for (const [samples, sign] of [[now, 1], [before, -1]]) {
    for (const { labels, value } of select(samples, `${name}_bucket`, where)) {
      const bound = Number(/le="([^"]*)"/.exec(labels)[1].replace("+Inf", "Infinity"));
      counts.set(bound, (counts.get(bound) ?? 0) + sign * value);
    }
  }
  const buckets = [...counts].sort(([one], [other]) => one - other);
  const wanted = (buckets.at(-1)?.[1] ?? 0) * part;
  let [lower, below] = [0, 0];
  for (const [bound, count] of buckets) {
    if (count >= wanted && count > 0) {
      return bound === Infinity ? Infinity : lower + (bound - lower) * ((wanted - below) / (count - below));
    }
    [lower, below] = [bound, count];
  }
  return NaN;
}

function inUnit(value, unit) {
  if (Number.isNaN(value)) return "\u2013";
  if (unit === "seconds") {
    if (value === Infinity) return "> 10 s";
    if (value >= 1) return `${value.toFixed(2)} s`;
    return value >= 0.001 ? `${(value * 1e3).toFixed(1)} ms` : `${(value * 1e6).toFixed(0)} µs`;
  }
  if (unit === "share") return `${(value * 100).toFixed(0)} %`;
  if (unit === "bytes") {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let at = 0;
    for (; value >= 1024 && at < units.length - 1; at += 1) value /= 1024;
    return `${at ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
  }
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
}

/** The value of an element now, and its text. */
function valueOf({ show, of, where, unit }, before, now, seconds) {
  if (show === "total") {
    const change = sum(select(now, of, where)) - sum(select(before, of, where));
    const rate = Math.max(change, 0) / seconds;
    return [rate, `${inUnit(rate, unit)}/s`];
  }
  const value = show === "now" ? sum(select(now, of, where)) : quantile(before, now, of, where, Number(show));
  return [value, inUnit(value, unit)];
}

const curves = new Map();

/** Draws the last values. The numbers say the same, so it is hidden from screen readers. */
function draw(element, value) {
  if (element.localName !== "span") return; // The table has no room.
  const values = [...curves.get(element) ?? [], Number.isFinite(value) ? value : 0].slice(-CURVE);
  curves.set(element, values);
  let line = element.parentElement.querySelector("polyline");
  if (!line) {
    const make = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
    const image = make("svg");
    image.setAttribute("viewBox", `0 0 ${CURVE - 1} 20`);
    image.setAttribute("preserveAspectRatio", "none");
    image.setAttribute("aria-hidden", "true");
    line = make("polyline");
    image.append(line);
    element.parentElement.append(image);
  }
  const top = Math.max(...values, Number.MIN_VALUE);
  const left = CURVE - values.length;
  line.setAttribute("points", values.map((each, at) => `${left + at},${19 - (18 * each) / top}`).join(" "));
}

let before;
let at = 0;

async function update() {
  const state = document.querySelector("#state");
  try {
    const response = await fetch("./metrics", { cache: "no-store" });
    if (!response.ok) throw new Error(`status ${response.status}`);
    const now = parse(await response.text());
    const seconds = (performance.now() - at) / 1000;
    at = performance.now();
    if (before) {
      for (const element of document.querySelectorAll("[data-show]")) {
        const [value, text] = valueOf(element.dataset, before, now, seconds);
        element.textContent = text;
        draw(element, value);
      }
      state.textContent = "Live: the values of the last two seconds.";
    }
    before = now;
  } catch {
    state.textContent = "The server does not respond. The values are old.";
  }
  setTimeout(update, EVERY_MS);
}

update();
