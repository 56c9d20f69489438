// Compose the effective batch: sliders b, N, G; what one optimizer step is made of; what memory it needs.

const COMPOSE = [["b", "compose-b", 4096], ["n", "compose-n", 1024], ["g", "compose-g", 1024]];

function setUpCompose(data, selected) {
  const every = data.sections.flatMap((section) => section.layouts);
  const here = () => data.sections[data.targets[selected()]?.section ?? 0] ?? { layouts: [], memory: [] };
  const first = startingLayout(here().layouts);
  const state = { b: first[0], n: first[1], g: first[2] };
  const stage = setUpStage(byId("stage"), state);
  const update = () => {
    const batch = state.b * state.n * state.g;
    byId("compose-equation").value = `B = ${count(state.b)} × ${count(state.n)} × ${count(state.g)} = ${count(batch)}`;
    byId("compose-meaning").textContent = composeMeaning(state, data.targets[selected()], batch);
    stage();
    showMemory(here().memory, state.b);
    showSameBatch(here().layouts, state, batch, set);
  };
  const controls = COMPOSE.map(([name, id, limit], axis) =>
    linkSlider(id, niceValues(limit, every.map((l) => l[axis])), limit, (value) => {
      state[name] = value;
      update();
    }),
  );
  const set = (values) => {
    values.forEach((value, axis) => {
      state[COMPOSE[axis][0]] = value;
      controls[axis](value);
    });
    update();
  };
  set([state.b, state.n, state.g]);
  return update;
}

// The grid layout in the middle by effective batch size, so that the sliders can move both ways.
function startingLayout(layouts) {
  if (!layouts.length) return [8, 2, 4];
  const many = layouts.filter((l) => l[1] > 1 && l[2] > 1);
  const ordered = [...(many.length ? many : layouts)].sort((p, q) => p[3] - q[3]);
  return ordered[ordered.length >> 1];
}

// 1, 2, 3, 4, 6, 8, 12, 16, ... up to the limit, and the sweep's own values.
function niceValues(limit, own) {
  const values = new Set(own.filter((v) => v <= limit));
  for (let power = 1; power <= limit; power *= 2) {
    values.add(power);
    if (power > 1 && power * 1.5 <= limit) values.add(power * 1.5);
  }
  return [...values].sort((p, q) => p - q);
}

// A range input over `values` and a number input for any whole number up to `limit`, kept together.
function linkSlider(id, values, limit, changed) {
  const [range, exact] = [byId(id), byId(`${id}-exact`)];
  range.max = String(values.length - 1);
  exact.max = String(limit);
  const show = (value) => {
    const index = values.reduce((best, v, i) => (Math.abs(v - value) < Math.abs(values[best] - value) ? i : best), 0);
    range.value = String(index);
    range.setAttribute("aria-valuetext", String(value));
    exact.value = String(value);
  };
  range.addEventListener("input", () => {
    show(values[Number(range.value)]);
    changed(values[Number(range.value)]);
  });
  exact.addEventListener("change", () => {
    const value = Math.min(Math.max(Math.round(Number(exact.value)) || 1, 1), limit);
    show(value);
    changed(value);
  });
  return show;
}

function composeMeaning({ b, n, g }, target, batch) {
  const ranks = n === 1 ? "One rank makes" : `Each of ${number(n)} ranks makes`;
  const passes = g === 1 ? "one pass" : `${number(g)} passes`;
  const sync = n === 1 ? "No gradient is sent." : g === 1 ? "Gradients are synced once." : "Gradients add up on the rank and are synced once.";
  const critical = target && target.critical_batch_size[0];
  const where = critical ? ` This B is ${number(batch / critical, 3)} × the critical batch size.` : "";
  return `${ranks} ${passes} of ${b === 1 ? "one example" : `${number(b)} examples`}. ${sync}${where}`;
}

function showSameBatch(layouts, state, batch, set) {
  const host = byId("same-batch");
  const same = layouts.filter(([b, n, g, size]) => size === batch && b * n * g === batch);
  host.replaceChildren(
    ...same.map(([b, n, g, , seconds, source]) => {
      const pressed = String(b === state.b && n === state.n && g === state.g);
      const text = `${b} × ${n} × ${g}${seconds === null ? "" : ` · ${duration(seconds)} per step${source === "measured" ? "" : `, ${source}`}`}`;
      const chip = element("button", { type: "button", class: "chip", "aria-pressed": pressed }, text);
      chip.addEventListener("click", () => {
        const index = [...host.children].indexOf(chip);
        set([b, n, g]);
        host.children[index].focus();
      });
      return chip;
    }),
  );
  byId("same-batch-label").textContent = same.length
    ? `The sweep's layouts with B = ${count(batch)}: one optimization curve, different seconds per step (b × N × G).`
    : `The sweep has no layout with B = ${count(batch)}.`;
}

function showMemory(measured, b) {
  const track = byId("memory-track");
  const fill = element("div", { class: "fill", id: "memory-fill" });
  track.replaceChildren(fill);
  const { share, text, open } = memoryAt(measured, b);
  fill.style.width = `${(100 * share).toFixed(2)}%`;
  fill.classList.toggle("open", open);
  byId("memory-text").value = text;
  for (const [size, , most] of measured) {
    const tick = element("div", { class: "tick", title: `b = ${size}: ${bytes(most)}` });
    tick.style.left = `calc(${(100 * most) / memoryScale(measured)}% - 1px)`;
    track.append(tick);
  }
}

const memoryScale = (measured) => 1.15 * Math.max(...measured.map(([, , most]) => most));

// Nothing is extrapolated: outside the measured b only a bound is said.
function memoryAt(measured, b) {
  if (!measured.length) {
    const share = Math.log2(b + 1) / Math.log2(COMPOSE[0][2] + 1);
    return { share, open: true, text: `not measured in this sweep; shown is b = ${b} alone (log scale), which activations grow with` };
  }
  const at = (bytesUsed) => Math.min(bytesUsed / memoryScale(measured), 1);
  const exact = measured.find(([size]) => size === b);
  if (exact) return { share: at(exact[2]), open: false, text: `${bytes(exact[2])} measured at b = ${b}${memorySpread(exact)}` };
  const above = measured.findIndex(([size]) => size > b);
  const last = measured[measured.length - 1];
  if (above < 0) return { share: 1, open: true, text: `more than ${bytes(last[2])}: b = ${b} is above every measured b` };
  const [size, , most] = measured[above];
  if (above === 0) return { share: at(most), open: true, text: `less than ${bytes(most)}: b = ${b} is below every measured b` };
  const [below, , least] = measured[above - 1];
  const between = least + ((most - least) * (b - below)) / (size - below);
  return { share: at(between), open: true, text: `about ${bytes(between)}, between the measured b = ${below} and b = ${size}` };
}

function memorySpread([, least, most]) {
  const percent = (100 * (most - least)) / most;
  return percent < 0.5 ? ", the same at every N and G" : `; ${number(percent, 2)} % apart over N and G`;
}
