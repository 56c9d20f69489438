// Time against cost: every grid layout, the Pareto front, and the best within a limit.

const STANDINGS = {
  front: { cls: "", mark: "circle", r: 6, words: "on the Pareto front" },
  close: { cls: "open", mark: "circle", r: 5, words: "not told apart from the front by these intervals" },
  dominated: { cls: "muted", mark: "square", r: 3.5, words: "dominated" },
};

function setUpCost(data, selected) {
  const host = byId("cost-chart");
  if (!host) return () => {};
  const draw = chart(host, () => describeCost(data, data.targets[selected()], selected()));
  const answer = () => {
    showChoice(data, selected(), "deadline", ["wall_clock_s", "gpu_hours"]);
    showChoice(data, selected(), "budget", ["gpu_hours", "wall_clock_s"]);
  };
  for (const id of ["deadline", "deadline-unit", "budget", "budget-unit"]) byId(id).addEventListener("input", answer);
  return () => {
    const costs = resolvedCosts(data, data.targets[selected()]);
    byId("cost-body").hidden = !costs.length;
    byId("cost-missing").hidden = Boolean(costs.length);
    byId("cost-cut").hidden = !data.left_out.layouts;
    byId("cost-cut").textContent = `Up to ${count(data.left_out.layouts)} further layouts are not drawn; the front counts all.`;
    if (!costs.length) return;
    draw();
    suggestLimits(costs);
    answer();
  };
}

const workerSeconds = (cost) => 3600 * cost.gpu_hours[0];

// The layouts that can be compared, each with its costs as [value, low, high].
function resolvedCosts(data, target) {
  const { layouts } = data.sections[target.section];
  return target.costs
    .map(([standing, value, low, high, examples], i) => {
      const hours = [value, low, high].map((v) => (v === null ? null : (v * layouts[i][1]) / 3600));
      return { standing, layout: layouts[i], wall_clock_s: [value, low, high, null], gpu_hours: hours, examples };
    })
    .filter((c) => c.wall_clock_s[0] !== null);
}

function describeCost(data, target, index) {
  const costs = resolvedCosts(data, target);
  const front = costs.filter((c) => c.standing === "front").sort((p, q) => p.wall_clock_s[0] - q.wall_clock_s[0]);
  const cls = seriesClass(index);
  const both = (c, name) => [c[name][1], c[name][2]].every((v) => v !== null);
  const layers = ["dominated", "close", "front"].map((place) => ({
    type: "marks",
    cls: place === "dominated" ? "muted" : cls,
    points: costs.filter((c) => c.standing === place).map((c) => costMark(data, c)),
  }));
  const timed = front.filter((c) => both(c, "wall_clock_s")).map((c) => [workerSeconds(c), ...c.wall_clock_s.slice(1, 3)]);
  return {
    label: `wall-clock to target against ${data.worker} time for every layout; the front is in the table below`,
    x: { label: "wall-clock to target", domain: domain(costs.map((c) => c.wall_clock_s[0])), format: duration, room: 70 },
    y: { label: `${data.worker} time to target`, domain: domain(costs.map(workerSeconds)), format: duration },
    layers: [
      { type: "steps", cls: `${cls} thin`, points: lowerHull(front) },
      { type: "beams", cls: `${cls} faded`, points: timed },
      ...layers,
    ],
  };
}

// The front in these two costs alone: the third (examples) can put further points on it.
function lowerHull(front) {
  const points = [];
  for (const c of front) {
    const [x, y] = [c.wall_clock_s[0], workerSeconds(c)];
    if (!points.length || y < points[points.length - 1][1]) points.push([x, y]);
  }
  return points;
}

function costMark(data, cost) {
  const { cls, mark, r, words } = STANDINGS[cost.standing];
  const text = `${layoutName(cost.layout)} = B ${number(cost.layout[3])}\n${duration(cost.wall_clock_s[0])}, ${workerTime(cost.gpu_hours[0], data.worker)}, ${number(cost.examples)} examples${secondsNote(cost.layout)}\n${words}`;
  return { x: cost.wall_clock_s[0], y: workerSeconds(cost), cls, mark, r, text };
}

const secondsNote = ([, , , , , source]) => (source === "measured" ? "" : `\nseconds per step ${source}`);

function suggestLimits(costs) {
  const middle = (name) => {
    const values = costs.map((c) => c[name][0]).sort((p, q) => p - q);
    return values[values.length >> 1];
  };
  for (const [id, seconds] of [["deadline", middle("wall_clock_s")], ["budget", 3600 * middle("gpu_hours")]]) {
    const unit = [86400, 3600, 60].find((size) => seconds >= 2 * size) ?? 1;
    byId(`${id}-unit`).value = String(unit);
    byId(id).value = String(Number((seconds / unit).toPrecision(2)));
  }
}

function showChoice(data, selected, input, [limited, objective]) {
  const seconds = Number(byId(input).value) * Number(byId(`${input}-unit`).value);
  const limit = limited === "gpu_hours" ? seconds / 3600 : seconds;
  const host = byId(`${input}-answer`);
  if (!(limit > 0)) {
    host.value = "give a number above 0";
    return;
  }
  const order = (p, q) => p[objective][0] - q[objective][0] || p[limited][0] - q[limited][0];
  const within = resolvedCosts(data, data.targets[selected]).filter((c) => c[limited][0] <= limit).sort(order);
  const safe = within.find((c) => c[limited][2] !== null && c[limited][2] <= limit);
  host.value = within.length ? choiceText(data, within[0], safe) : "no layout of the grid is within this limit";
}

function choiceText(data, expected, safe) {
  const say = (c) =>
    `${layoutName(c.layout)}: ${estimate(c.wall_clock_s, duration)}, ${workerTime(c.gpu_hours[0], data.worker)}`;
  if (safe === expected) return `${say(expected)}. Within the limit at 95 %.`;
  const sure = safe ? `Surely within it (95 %): ${say(safe)}.` : "None is surely within it.";
  return `${say(expected)}, as expected, but its interval crosses the limit. ${sure}`;
}
