// A log-log chart as SVG, redrawn at the width it is given, with a tooltip on the nearest point.

const MARGIN = { top: 12, right: 16, bottom: 46 };
const CHARACTER = 6.6; // pixels, about, of the axes' font

function chart(host, describe) {
  const tip = element("div", { class: "tip", hidden: "" });
  let width = 0;
  let spots = [];
  const draw = () => {
    if (!width) return;
    const svg = host.querySelector("svg");
    if (svg) svg.remove();
    spots = drawChart(host, describe(), width);
    if (!tip.isConnected) host.append(tip);
    tip.hidden = true;
  };
  new ResizeObserver(([entry]) => {
    const next = Math.round(entry.contentRect.width);
    if (next === width) return;
    width = next;
    draw();
  }).observe(host);
  host.addEventListener("pointermove", (event) => showTip(host, tip, spots, event));
  host.addEventListener("pointerleave", () => (tip.hidden = true));
  return draw;
}

function showTip(host, tip, spots, event) {
  const box = host.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  let best = null;
  let least = 26;
  for (const spot of spots) {
    const distance = Math.hypot(spot.x - x, spot.y - y);
    if (distance < least) [best, least] = [spot, distance];
  }
  tip.hidden = best === null;
  if (best === null) return;
  tip.textContent = best.text;
  const left = Math.min(Math.max(best.x - tip.offsetWidth / 2, 0), box.width - tip.offsetWidth);
  const above = best.y - tip.offsetHeight - 12;
  tip.style.left = `${left}px`;
  tip.style.top = `${above < 0 ? best.y + 14 : above}px`;
}

function drawChart(host, spec, width) {
  const height = spec.height ?? (width < 520 ? 270 : 330);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", spec.label);
  const rows = ticks(spec.y.domain, 10, (height - MARGIN.top - MARGIN.bottom) / 24);
  const left = 36 + CHARACTER * Math.max(...rows.map((value) => (spec.y.format ?? compact)(value).length), 1);
  const x = logScale(spec.x.domain, [left, width - MARGIN.right]);
  const y = logScale(spec.y.domain, [height - MARGIN.bottom, MARGIN.top]);
  const frame = { x, y, left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  drawAxes(svg, spec, rows, frame);
  const spots = [];
  for (const layer of spec.layers) LAYERS[layer.type](svg, layer, { ...frame, spots });
  host.prepend(svg);
  return spots;
}

function logScale([low, high], [from, to]) {
  const span = Math.log(high / low) || 1;
  return (value) => from + ((to - from) * Math.log(value / low)) / span;
}

// Around the values, a little beyond them; null when there is nothing to show.
function domain(values, pad = 1.25) {
  const known = values.filter((v) => v !== null && v !== undefined && v > 0 && Number.isFinite(v));
  if (!known.length) return null;
  return [Math.min(...known) / pad, Math.max(...known) * pad];
}

function ticks([low, high], base, room) {
  const choices = base === 2 ? [[1], [1], [1]] : [[1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]];
  for (let stride = 1; stride < 64; stride += 1) {
    for (const steps of choices) {
      const found = [];
      const first = Math.floor(Math.log(low) / Math.log(base));
      for (let power = first; base ** power <= high; power += 1) {
        if (((power % stride) + stride) % stride) continue;
        for (const step of stride > 1 ? [1] : steps) {
          const value = step * base ** power;
          if (value >= low && value <= high) found.push(value);
        }
      }
      if (found.length <= room) return found;
    }
  }
  return [];
}

// Of labels centred at `at`, in order, those that leave room to the one before: a narrow chart, or values close to
// each other, would write them over one another. Every value keeps its line.
function labelsApart(labels) {
  let end = -Infinity;
  return labels.filter(([at, text]) => {
    const half = (CHARACTER * text.length) / 2;
    if (at - half < end + CHARACTER) return false;
    end = at + half;
    return true;
  });
}

function drawAxes(svg, spec, rows, { x, y, left, right, top, bottom }) {
  const format = spec.x.format ?? compact;
  const columns = spec.x.ticks ?? ticks(spec.x.domain, spec.x.base ?? 10, (right - left) / (spec.x.room ?? 46));
  for (const value of columns) shape("line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: bottom }, svg);
  for (const [at, text] of labelsApart(columns.map((value) => [x(value), format(value)]))) {
    shape("text", { x: at, y: bottom + 17, "text-anchor": "middle" }, svg, text);
  }
  for (const value of rows) {
    shape("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }, svg);
    shape("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, svg, (spec.y.format ?? compact)(value));
  }
  shape("path", { class: "axis", fill: "none", d: `M${left} ${top}V${bottom}H${right}` }, svg);
  shape("text", { x: (left + right) / 2, y: bottom + 38, "text-anchor": "middle" }, svg, spec.x.label);
  const turned = `translate(12 ${(top + bottom) / 2}) rotate(-90)`;
  shape("text", { transform: turned, "text-anchor": "middle" }, svg, spec.y.label);
}

function path(points, { x, y }) {
  return points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
}

const MARKS = {
  circle: (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
  square: (x, y, r) => `M${x - r * 0.9} ${y - r * 0.9}h${1.8 * r}v${1.8 * r}h${-1.8 * r}Z`,
  diamond: (x, y, r) => `M${x} ${y - 1.3 * r}l${1.3 * r} ${1.3 * r}l${-1.3 * r} ${1.3 * r}l${-1.3 * r} ${-1.3 * r}Z`,
  cross: (x, y, r) => `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`,
  triangle: (x, y, r) => `M${x} ${y - 1.3 * r}L${x + 1.2 * r} ${y + 0.9 * r}H${x - 1.2 * r}Z`,
};

const SERIES_MARKS = ["circle", "square", "diamond"];

// Each draws one layer; `cls` is its colour class, `shade` the place on the ordered colours where it has one.
const LAYERS = {
  line(svg, { points, cls, shade = 0 }, scales) {
    if (points.length > 1) shape("path", { class: `line ${cls}`, shade, d: path(points, scales) }, svg);
  },
  steps(svg, { points, cls }, scales) {
    const corners = points.flatMap(([a, b], i) => (i ? [[a, points[i - 1][1]], [a, b]] : [[a, b]]));
    LAYERS.line(svg, { points: corners, cls }, scales);
  },
  band(svg, { points, cls, shade = 0 }, scales) {
    if (points.length < 2) return;
    const up = points.map(([a, low]) => [a, low]);
    const back = points.map(([a, , high]) => [a, high]).reverse();
    shape("path", { class: `band ${cls}`, shade, d: `${path(up, scales)}${path(back, scales).replace("M", "L")}Z` }, svg);
  },
  span(svg, { low, high, cls }, { x, left, right, top, bottom }) {
    const from = Math.min(Math.max(x(low), left), right);
    const to = Math.min(Math.max(x(high), left), right);
    shape("rect", { class: `span ${cls}`, x: from, width: to - from, y: top, height: bottom - top }, svg);
  },
  rule(svg, { at, cls, note }, { x, left, right, top, bottom }) {
    const where = x(at);
    if (where < left - 1 || where > right + 1) return;
    shape("line", { class: `line ${cls}`, x1: where, x2: where, y1: top, y2: bottom }, svg);
    const end = where > left + 0.7 * (right - left);
    const place = { x: where + (end ? -6 : 6), y: top + 13, "text-anchor": end ? "end" : "start" };
    shape("text", { class: `note ${cls.split(" ")[0]}`, ...place }, svg, note);
  },
  whiskers(svg, { points, cls }, { x, y }) {
    for (const [at, low, high] of points) {
      shape("line", { class: `line thin ${cls}`, x1: x(at), x2: x(at), y1: y(low), y2: y(high) }, svg);
    }
  },
  beams(svg, { points, cls }, { x, y, left, right }) {
    for (const [at, low, high] of points) {
      const ends = { x1: Math.max(x(low), left), x2: Math.min(x(high), right) };
      shape("line", { class: `line thin ${cls}`, ...ends, y1: y(at), y2: y(at) }, svg);
    }
  },
  seeds(svg, { points, cls }, { x, y }) {
    for (const [a, b] of points) shape("circle", { class: `seed ${cls}`, cx: x(a), cy: y(b), r: 2.2 }, svg);
  },
  marks(svg, { points, cls, shade = 0 }, { x, y, top, spots }) {
    for (const point of points) {
      const [cx, cy] = [x(point.x), point.y === null ? top + 6 : y(point.y)];
      const d = MARKS[point.mark ?? "circle"](cx, cy, point.r ?? 5);
      shape("path", { class: `mark ${cls} ${point.cls ?? ""}`, shade, d }, svg);
      if (point.text) spots.push({ x: cx, y: cy, text: point.text });
    }
  },
  here(svg, { at, value }, { x, y, top, bottom }) {
    shape("line", { class: "here", x1: x(at), x2: x(at), y1: top, y2: bottom }, svg);
    shape("circle", { class: "here-dot", cx: x(at), cy: y(value), r: 5 }, svg);
  },
};
