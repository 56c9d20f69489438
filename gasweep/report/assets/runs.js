// The table of every run: sorted by any column, filtered by state and text.

const RUN_HEADS = {
  state: ["state", "text"],
  kind: ["kind", "text"],
  effective_batch_size: ["B"],
  micro_batch_size: ["b"],
  world_size: ["N"],
  accumulation_steps: ["G"],
  learning_rate: ["learning rate"],
  seed: ["seed"],
  optimizer_steps: ["optimizer steps"],
  final_metric: ["last metric"],
  wall_s: ["wall-clock"],
  seconds_per_optimizer_step: ["per step"],
  examples_per_s: ["examples/s"],
  num_attempts: ["attempts"],
  axes: ["axes", "text"],
  reason: ["reason", "wide"],
  run_id: ["run", "text"],
};

const ROWS_AT_FIRST = 500;

const RUN_FORMATS = { wall_s: duration, seconds_per_optimizer_step: duration, seed: String, learning_rate: number };

function setUpRuns({ columns, rows }, leftOut) {
  const table = byId("runs-table");
  if (!table) return;
  const used = columns.map((name, i) => i).filter((i) => rows.some((row) => row[i] !== null && row[i] !== ""));
  const state = { by: null, down: false, limit: ROWS_AT_FIRST };
  const search = byId("runs-search");
  const states = byId("runs-state");
  for (const name of [...new Set(rows.map((row) => row[0]))].sort()) states.append(element("option", { value: name }, name));
  const body = table.tBodies[0];
  const every = byId("runs-all");
  every.addEventListener("click", () => {
    state.limit = Infinity;
    update();
    table.parentElement.focus();
  });
  const update = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = rows.filter((row) => (!states.value || row[0] === states.value) && words.every((w) => rowText(row).includes(w)));
    if (state.by !== null) shown.sort((p, q) => compareCells(p[state.by], q[state.by], state.down));
    body.replaceChildren(...shown.slice(0, state.limit).map((row) => runRow(row, columns, used)));
    every.hidden = shown.length <= state.limit;
    const cut = leftOut ? `; ${count(leftOut)} more are left out here, gasweep export has all` : "";
    byId("runs-count").value = `${count(shown.length)} of ${count(rows.length)} runs${cut}`;
  };
  table.tHead.rows[0].replaceChildren(...used.map((i) => runHead(columns[i], i, state, table, update)));
  search.addEventListener("input", update);
  states.addEventListener("input", update);
  update();
}

const rowText = (row) => row.filter((cell) => cell !== null).join(" ").toLowerCase();

// Missing values stay at the end, whichever way the column is sorted.
function compareCells(left, right, down) {
  if (left === null || right === null) return (left === null) - (right === null);
  const order = typeof left === "number" ? left - right : String(left).localeCompare(String(right));
  return down ? -order : order;
}

function runHead(name, index, state, table, update) {
  const [label, kind = ""] = RUN_HEADS[name];
  const button = element("button", { type: "button" }, label);
  const head = element("th", { scope: "col", class: kind }, button);
  button.addEventListener("click", () => {
    state.down = state.by === index && !state.down;
    state.by = index;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    update();
  });
  return head;
}

function runRow(row, columns, used) {
  const made = element("tr");
  for (const i of used) {
    const cell = element("td", { class: RUN_HEADS[columns[i]][1] ?? "" });
    const value = row[i];
    const format = RUN_FORMATS[columns[i]] ?? ((v) => (typeof v === "number" ? number(v) : v));
    cell.textContent = value === null ? "" : format(value);
    made.append(cell);
  }
  return made;
}
