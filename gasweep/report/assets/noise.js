// The noise scale along training, a curve with its band for each effective batch size.

const NOISE_AXES = ["optimizer steps", "examples", "training loss (falls from right to left)"];
const NOISE_REACH = 30; // how far beyond the values a band may stretch the axis

function setUpNoise(data, selected) {
  const host = byId("noise-chart");
  if (!host) return () => {};
  const against = byId("noise-against");
  const courses = () => data.sections[data.targets[selected()].section].noise;
  const draw = chart(host, () => describeNoise(courses(), Number(against.value)));
  const update = () => {
    const shown = courses();
    byId("noise-body").hidden = !shown.length;
    byId("noise-missing").hidden = Boolean(shown.length);
    if (!shown.length) return;
    draw();
    byId("noise-legend").replaceChildren(...shown.map((course, i) => noiseKey(course, i, shown.length)));
  };
  against.addEventListener("input", update);
  return update;
}

function describeNoise(courses, axis) {
  const points = courses.flatMap((course) => course.points).filter((p) => p[axis] > 0);
  const values = points.map((p) => p[3] ?? p[4]).filter((v) => v > 0);
  const reach = values.length ? [Math.min(...values) / NOISE_REACH, Math.max(...values) * NOISE_REACH] : [1, 10];
  const near = (v) => (v === null ? null : Math.min(Math.max(v, reach[0]), reach[1]));
  const limits = points.filter((p) => p[3] !== null).flatMap((p) => [near(p[4]), near(p[5])]);
  const ys = domain([...values, ...limits], 1.2) ?? [1, 10];
  return {
    label: `noise scale in examples against ${NOISE_AXES[axis]}, a curve for each effective batch size`,
    height: 380,
    x: { label: NOISE_AXES[axis], domain: domain(points.map((p) => p[axis]), 1.1) ?? [1, 10] },
    y: { label: "noise scale (examples)", domain: atLeastDouble(ys) },
    layers: courses.flatMap((course, i) => noiseLayers(course, axis, shadeOf(i, courses.length), near)),
  };
}

function noiseLayers(course, axis, shade, near) {
  const points = course.points.filter((p) => p[axis] > 0).sort((p, q) => p[axis] - q[axis]);
  const stretches = resolvedStretches(points);
  const banded = stretches.map((s) => s.filter((p) => p[4] !== null && p[5] !== null));
  return [
    ...banded.map((s) => ({ type: "band", cls: "ordered", shade, points: s.map((p) => [p[axis], near(p[4]), near(p[5])]) })),
    ...stretches.map((s) => ({ type: "line", cls: "ordered", shade, points: s.map((p) => [p[axis], p[3]]) })),
    { type: "marks", cls: "ordered", shade, points: points.map((p) => noiseMark(course, p, axis)).filter(Boolean) },
  ];
}

// A curve is not drawn across windows in which nothing was resolved.
function resolvedStretches(points) {
  const stretches = [[]];
  for (const point of points) {
    if (point[3] !== null && point[3] > 0) stretches.at(-1).push(point);
    else stretches.push([]);
  }
  return stretches.filter((stretch) => stretch.length);
}

function noiseMark(course, [steps, examples, loss, value, low, high], axis) {
  const at = [steps, examples, loss][axis];
  const where = `B = ${number(course.B)}, optimizer step ${count(steps)}, ${count(examples)} examples`;
  const text = `${where}${loss === null ? "" : `, loss ${number(loss)}`}\nnoise scale ${estimate([value, low, high, "not resolved"])}`;
  if (value > 0) return { x: at, y: value, r: 2.5, text };
  if (low > 0) return { x: at, y: low, r: 4, mark: "triangle", cls: "open", text };
  return null;
}

function noiseKey(course, index, total) {
  const key = document.createElementNS(SVG, "svg");
  key.setAttribute("aria-hidden", "true");
  key.setAttribute("viewBox", "0 0 26 14");
  shape("path", { class: "line ordered", shade: shadeOf(index, total), d: "M1 7H25" }, key);
  const rate = course.learning_rate === null ? "" : `, learning rate ${number(course.learning_rate)}`;
  return element("li", {}, key, `B ${number(course.B)}${rate}`);
}
