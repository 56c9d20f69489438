// Steps to target against learning rate, one curve for each effective batch size.

function setUpRates(data, selected) {
  const host = byId("rates-chart");
  if (!host) return () => {};
  const draw = chart(host, () => describeRates(data.targets[selected()]));
  return () => {
    const curves = data.targets[selected()].observations.filter((o) => o.rates.length);
    byId("rates-body").hidden = !curves.length;
    byId("rates-missing").hidden = Boolean(curves.length);
    if (!curves.length) return;
    draw();
    byId("rates-legend").replaceChildren(...curves.map((o, i) => rateKey(o, i, curves.length)));
  };
}

function describeRates(target) {
  const curves = target.observations.filter((o) => o.rates.length);
  const all = curves.flatMap((o) => o.rates);
  const rates = [...new Set(all.map((p) => p[0]))].sort((p, q) => p - q);
  return {
    label: "optimizer steps to target against learning rate, a curve for each effective batch size",
    height: 380,
    x: { label: "learning rate", domain: domain(rates, 1.4), ticks: rates.length <= 7 ? rates : undefined, format: number },
    y: { label: "optimizer steps to target", domain: domain(all.map((p) => p[1] ?? p[2])) ?? [1, 10] },
    layers: curves.flatMap((o, i) => rateLayers(o, shadeOf(i, curves.length))),
  };
}

const shadeOf = (index, count) => (count > 1 ? index / (count - 1) : 0);

function rateLayers(observation, shade) {
  const reached = observation.rates.filter((p) => p[1] !== null && !p[5]);
  const best = reached.filter((p) => p[0] === observation.learning_rate);
  return [
    { type: "line", cls: "ordered", shade, points: reached },
    { type: "marks", cls: "ordered", shade, points: observation.rates.map((p) => rateMark(observation, p)).filter(Boolean) },
    { type: "marks", cls: "ordered", shade, points: best.map(([x, y]) => ({ x, y, r: 8, cls: "ring" })) },
  ];
}

// A cross on the upper edge: a seed diverged. An open triangle: a seed missed the target.
function rateMark(observation, [rate, steps, atLeast, seeds, missed, diverged]) {
  const counts = [[seeds - missed - diverged, "reached"], [missed, "missed"], [diverged, "diverged"]];
  const told = counts.filter(([count]) => count).map(([count, what]) => `${count} ${what}`).join(", ");
  const head = `B = ${number(observation.B)}, learning rate ${number(rate)}\nseeds: ${told}`;
  if (diverged) return { x: rate, y: null, r: 4, mark: "cross", text: head };
  if (steps !== null) return { x: rate, y: steps, r: 3.5, text: `${head}\n${number(steps)} steps` };
  if (atLeast === null) return null;
  return { x: rate, y: atLeast, r: 4.5, mark: "triangle", cls: "open", text: `${head}\nat least ${number(atLeast)} steps` };
}

function rateKey(observation, index, count) {
  const key = document.createElementNS(SVG, "svg");
  key.setAttribute("aria-hidden", "true");
  key.setAttribute("viewBox", "0 0 26 14");
  shape("path", { class: "line ordered", shade: shadeOf(index, count), d: "M1 7H25" }, key);
  const rate = observation.learning_rate;
  const found = rate === null ? "no rate reached the target" : `${number(rate)}, ${observation.label}`;
  return element("li", {}, key, `B ${number(observation.B)}: ${found}`);
}
