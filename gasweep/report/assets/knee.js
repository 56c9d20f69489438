// The knee: one batch size, chosen by a slider, and what it costs in steps, examples, time and money.

function setUpKnee(data, selected, redrawCurves) {
  const slider = byId("knee-batch");
  const family = byId("knee-family");
  if (!slider) return () => {};
  let families = [];
  const update = () => {
    const target = data.targets[selected()];
    const sample = target.law[Number(slider.value)];
    slider.setAttribute("aria-valuetext", sample ? `${number(sample.B)} examples per optimizer step` : "no fitted law");
    if (sample) showKnee(target, sample, { families, worker: data.worker }, family.value);
    redrawCurves(sample ?? null);
  };
  const reset = () => {
    const { law, critical_batch_size: critical, section } = data.targets[selected()];
    families = data.sections[section].families;
    fillFamilies(family, families);
    byId("knee").hidden = !law.length;
    byId("knee-missing").hidden = Boolean(law.length);
    slider.max = String(Math.max(law.length - 1, 0));
    slider.value = String(nearest(law, critical[0] ?? law[law.length >> 1]?.B ?? 1));
    update();
  };
  slider.addEventListener("input", update);
  family.addEventListener("change", update);
  return reset;
}

function fillFamilies(select, families) {
  const options = [["fastest", "fastest measured"], ["cheapest", "cheapest measured"]];
  families.forEach(([b, n], i) => options.push([String(i), `b ${b} × N ${n}`]));
  select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
}

function nearest(law, batch) {
  let best = 0;
  law.forEach((p, i) => {
    if (Math.abs(Math.log(p.B / batch)) < Math.abs(Math.log(law[best].B / batch))) best = i;
  });
  return best;
}

function showKnee(target, sample, timing, choice) {
  const [steps, low, high] = sample.steps;
  const times = (values) => values.map((v) => (v === null ? null : v * sample.B));
  byId("knee-b").value = number(sample.B);
  byId("knee-steps").value = number(steps);
  byId("knee-steps-note").textContent = between(low, high, number) + overFewest(steps, target.min_steps);
  byId("knee-examples").value = number(steps * sample.B);
  const [, fewest, most] = times(sample.steps);
  byId("knee-examples-note").textContent = between(fewest, most, number) + overFewest(steps * sample.B, target.min_examples);
  showKneeCost(sample, timing, choice);
}

function showKneeCost(sample, timing, choice) {
  const index = familyIndex(sample, timing.families, choice);
  const time = index === null ? null : sample.seconds[index];
  const [b, n] = index === null ? [null, 0] : timing.families[index];
  byId("knee-time").value = time ? duration(time[0]) : "not measured";
  byId("knee-cost").value = time ? workerTime((time[0] * n) / 3600, timing.worker) : "not measured";
  const passes = time ? sample.B / (b * n) : 0;
  const layout = time ? `b ${b} × N ${n} × G ${Number(passes.toPrecision(3))}${Number.isInteger(passes) ? "" : " (on average)"}` : missingTime(sample, timing, choice);
  const side = (v) => (v === null ? null : (v * n) / 3600);
  byId("knee-time-note").textContent = time ? `${between(time[1], time[2], duration)}; at ${layout}` : layout;
  byId("knee-cost-note").textContent = time ? between(side(time[1]), side(time[2]), (v) => workerTime(v, timing.worker)) : "";
}

function familyIndex(sample, families, choice) {
  if (choice !== "fastest" && choice !== "cheapest") return sample.seconds[Number(choice)] ? Number(choice) : null;
  const price = (i) => sample.seconds[i][0] * (choice === "fastest" ? 1 : families[i][1]);
  const known = families.map((_, i) => i).filter((i) => sample.seconds[i]);
  return known.length ? known.reduce((best, i) => (price(i) < price(best) ? i : best)) : null;
}

function missingTime(sample, timing, choice) {
  if (!timing.families.length) return "no seconds per step were measured in this sweep";
  const where = choice === "fastest" || choice === "cheapest" ? "any layout" : "this layout";
  return `B = ${number(sample.B)} lies outside what was timed for ${where}`;
}

const between = (low, high, format) =>
  `95 %: ${low === null ? "?" : format(low)} – ${high === null ? "?" : format(high)}`;

const overFewest = (value, least) => (least ? `; ${number(value / least, 3)} × the fewest possible` : "");
