// Small helpers: elements built from text (never from markup), and numbers as people read them.

const SVG = "http://www.w3.org/2000/svg";

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function shape(tag, attributes, parent, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "shade") made.style.setProperty("--shade", value);
    else made.setAttribute(name, value);
  }
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

const byId = (id) => document.getElementById(id);

function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(digits - 1).replace(/\.?0+e/, "e");
  const rounded = Number(value.toPrecision(digits));
  return rounded.toLocaleString("en-US", { maximumFractionDigits: 10 });
}

// A whole number in full, however large.
const count = (value) => value.toLocaleString("en-US");

function compact(value) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  return `${Number(value.toPrecision(3))}`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const units = [["µs", 1e-6, 1e-3], ["ms", 1e-3, 1], ["s", 1, 60], ["min", 60, 3600], ["h", 3600, 172800]];
  for (const [unit, size, limit] of units) {
    if (seconds < limit) return `${Number((seconds / size).toPrecision(3))} ${unit}`;
  }
  return `${Number((seconds / 86400).toPrecision(3))} d`;
}

// Worker time: wall-clock times ranks, in the unit that suits its size.
function workerTime(hours, worker) {
  if (hours === null || hours === undefined) return "–";
  const [size, unit] = [[1, "hours"], [1 / 60, "minutes"]].find(([limit]) => hours >= 2 * limit) ?? [1 / 3600, "seconds"];
  return `${number(hours / size, 3)} ${worker}-${unit}`;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = count < 1 ? 0 : Math.min(Math.floor(Math.log2(count) / 10), units.length - 1);
  return `${Number((count / 1024 ** power).toPrecision(3))} ${units[power]}`;
}

// [value, low, high, reason] as "value (low – high)", "≥ low", "≤ high" or the reason.
function estimate([value, low, high, reason], format = number) {
  const side = (bound) => (bound === null || bound === undefined ? "?" : format(bound));
  if (value !== null) return `${format(value)} (${side(low)} – ${side(high)})`;
  if (low !== null && high === null) return `≥ ${format(low)} (${reason})`;
  if (high !== null && low === null) return `≤ ${format(high)} (${reason})`;
  return `unknown (${reason})`;
}

const layoutName = ([b, n, g]) => `b ${b} × N ${n} × G ${g}`;

const seriesClass = (index) => `s${index % 7}`;
