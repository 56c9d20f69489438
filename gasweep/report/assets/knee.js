// The knee: one batch size, chosen by a slider, and what it costs in steps, examples, time and money.

function setUpKnee(data, selected, redrawCurves) {
  const slider = byId("knee-batch");
  const family = byId("knee-family");
  if (!slider) return () => {};
  fillFamilies(family, data.families);
  const update = () => {
    const target = data.targets[selected()];
    const sample = target.law[Number(slider.value)];
    slider.setAttribute("aria-valuetext", sample ? `${number(sample.B)} examples per optimizer step` : "no fitted law");
    if (sample) showKnee(target, sample, data, family.value);
    redrawCurves(sample ?? null);
  };
  const reset = () => {
    const { law, critical_batch_size: critical } = data.targets[selected()];
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
  select.append(element("option", { value: "fastest" }, "fastest measured"));
  select.append(element("option", { value: "cheapest" }, "cheapest measured"));
  families.forEach(([b, n], i) => select.append(element("option", { value: String(i) }, `b ${b} × N ${n}`)));
}

function nearest(law, batch) {
  let best = 0;
  law.forEach((p, i) => {
    if (Math.abs(Math.log(p.B / batch)) < Math.abs(Math.log(law[best].B / batch))) best = i;
  });
  return best;
}

function showKnee(target, sample, data, choice) {
  const [steps, low, high] = sample.steps;
  const times = (values) => values.map((v) => (v === null ? null : v * sample.B));
  byId("knee-b").value = number(sample.B);
  byId("knee-steps").value = number(steps);
  byId("knee-steps-note").textContent = `${between(low, high, number)}; ${ratio(steps, target.min_steps[0])} × the fewest possible`;
  byId("knee-examples").value = number(steps * sample.B);
  const [, fewest, most] = times(sample.steps);
  byId("knee-examples-note").textContent = `${between(fewest, most, number)}; ${ratio(steps * sample.B, target.min_examples[0])} × the fewest possible`;
  showKneeCost(sample, data, choice);
}

function showKneeCost(sample, data, choice) {
  const index = familyIndex(sample, data.families, choice);
  const time = index === null ? null : sample.seconds[index];
  const [b, n] = index === null ? [null, 0] : data.families[index];
  byId("knee-time").value = time ? duration(time[0]) : "not measured";
  byId("knee-cost").value = time ? workerTime((time[0] * n) / 3600, data.worker) : "not measured";
  const passes = time ? sample.B / (b * n) : 0;
  const layout = time ? `b ${b} × N ${n} × G ${Number(passes.toPrecision(3))}${Number.isInteger(passes) ? "" : " (on average)"}` : missingTime(sample, data, choice);
  const side = (v) => (v === null ? null : (v * n) / 3600);
  byId("knee-time-note").textContent = time ? `${between(time[1], time[2], duration)}; at ${layout}` : layout;
  byId("knee-cost-note").textContent = time ? between(side(time[1]), side(time[2]), (v) => workerTime(v, data.worker)) : "";
}

function familyIndex(sample, families, choice) {
  if (choice !== "fastest" && choice !== "cheapest") return sample.seconds[Number(choice)] ? Number(choice) : null;
  const price = (i) => sample.seconds[i][0] * (choice === "fastest" ? 1 : families[i][1]);
  const known = families.map((_, i) => i).filter((i) => sample.seconds[i]);
  return known.length ? known.reduce((best, i) => (price(i) < price(best) ? i : best)) : null;
}

function missingTime(sample, data, choice) {
  if (!data.families.length) return "no seconds per step were measured in this sweep";
  const where = choice === "fastest" || choice === "cheapest" ? "any layout" : "this layout";
  return `B = ${number(sample.B)} lies outside what was timed for ${where}`;
}

const between = (low, high, format) =>
  `95 %: ${low === null ? "?" : format(low)} – ${high === null ? "?" : format(high)}`;

const ratio = (value, least) => (least ? number(value / least, 3) : "?");
