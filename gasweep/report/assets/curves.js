// Both curves of every target, and the slider that walks along the selected one.

function setUpCurves(data, selected) {
  const state = { sample: null };
  const draws = ["steps", "examples"].map((kind) => {
    const host = byId(`${kind}-chart`);
    return host && chart(host, () => describeCurves(data.targets, kind, selected(), state.sample));
  });
  return (sample) => {
    state.sample = sample;
    for (const draw of draws) if (draw) draw();
  };
}

function describeCurves(targets, kind, chosen, sample) {
  const inExamples = kind === "examples";
  const unit = (batch) => (inExamples ? batch : 1);
  const seen = targets.flatMap((t) => t.observations);
  const xs = domain(seen.map((o) => o.B), 1.7) ?? [1, 1024];
  const shown = targets.flatMap((t) => t.law.filter((p) => p.B >= xs[0] && p.B <= xs[1]));
  const ys = [
    ...seen.flatMap((o) => [...o.steps.slice(0, 2), ...o.spread].map((v) => v && v * unit(o.B))),
    ...shown.flatMap((p) => p.steps.map((v) => v && v * unit(p.B))),
  ];
  const layers = targets.flatMap((target, index) => targetLayers(target, index, unit, index === chosen, xs));
  if (sample && sample.B >= xs[0] && sample.B <= xs[1]) {
    layers.push({ type: "here", at: sample.B, value: sample.steps[0] * unit(sample.B) });
  }
  const what = inExamples ? "examples to target" : "optimizer steps to target";
  return {
    label: `${what} against effective batch size; the same numbers are in the table below`,
    x: { label: "effective batch size B", base: 2, domain: xs, format: (v) => (v < 1e5 ? number(v, 6) : compact(v)) },
    y: { label: what, domain: atLeastDouble(domain(ys, 1.3) ?? [1, 10]) },
    layers,
  };
}

// So that nothing flat looks steep.
function atLeastDouble([low, high]) {
  const widen = Math.sqrt(Math.max(2 / (high / low), 1));
  return [low / widen, high * widen];
}

function targetLayers(target, index, unit, isChosen, xs) {
  const cls = `${seriesClass(index)}${isChosen ? "" : " faded"}`;
  const law = target.law.filter((p) => p.B >= xs[0] && p.B <= xs[1]);
  const banded = law.filter((p) => p.steps[1] !== null && p.steps[2] !== null);
  const scaled = (p, i) => p.steps[i] * unit(p.B);
  const spread = target.observations.filter((o) => o.spread.length);
  return [
    ...(isChosen ? criticalLayers(target.critical_batch_size, seriesClass(index), xs) : []),
    { type: "band", cls: seriesClass(index), points: isChosen ? banded.map((p) => [p.B, scaled(p, 1), scaled(p, 2)]) : [] },
    { type: "line", cls, points: law.map((p) => [p.B, scaled(p, 0)]) },
    { type: "whiskers", cls, points: spread.map((o) => [o.B, ...o.spread.map((s) => s * unit(o.B))]) },
    { type: "seeds", cls, points: !isChosen ? [] : target.observations.flatMap((o) => o.seeds.filter(Boolean).map((s) => [o.B, s * unit(o.B)])) },
    { type: "marks", cls, points: target.observations.map((o) => observationMark(target, o, index, unit)).filter(Boolean) },
  ];
}

// B_crit and its interval; a bound alone is dotted with an arrow, at the axis' end if it lies beyond.
function criticalLayers([value, low, high], cls, [least, most]) {
  const within = (bound) => Math.min(Math.max(bound, least), most);
  if (value !== null) {
    const span = low !== null && high !== null ? [{ type: "span", low, high, cls }] : [];
    return [...span, { type: "rule", at: value, cls: `${cls} dashed`, note: "B_crit" }];
  }
  if (low !== null && high === null) return [{ type: "rule", at: within(low), cls: `${cls} dotted`, note: `B_crit ≥ ${number(low)} →` }];
  if (high !== null && low === null) return [{ type: "rule", at: within(high), cls: `${cls} dotted`, note: `← B_crit ≤ ${number(high)}` }];
  return [];
}

function observationMark(target, o, index, unit) {
  const [steps, atLeast] = o.steps;
  const head = `${target.name}\nB = ${number(o.B)}`;
  const rate = o.learning_rate === null ? "" : `\nlearning rate ${number(o.learning_rate)} (${o.label})`;
  const note = o.note ? `\n${o.note}` : "";
  if (steps === null) {
    if (atLeast === null) return null;
    const text = `${head}\ntarget not reached by every seed: at least ${number(atLeast)} steps${rate}${note}`;
    return { x: o.B, y: atLeast * unit(o.B), mark: "triangle", cls: "open", r: 6, text };
  }
  const text = `${head}\n${number(steps)} steps, ${number(steps * o.B)} examples${rate}${note}`;
  return { x: o.B, y: steps * unit(o.B), mark: SERIES_MARKS[index % 3], cls: o.flagged ? "open" : "", text };
}
