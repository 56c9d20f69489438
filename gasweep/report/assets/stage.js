// One optimizer step drawn on a canvas: a row per rank, a column per pass, a cell per contribution.

const MIN_CELL = 5;
const MAX_ROWS = 16;
const MIN_COLUMN = 16;

function setUpStage(host, state) {
  const canvas = host.querySelector("canvas");
  const tip = element("div", { class: "tip", hidden: "" });
  host.append(tip);
  let width = 0;
  let plan = null;
  const draw = () => {
    if (!width) return;
    plan = stagePlan(state, width);
    paintStage(canvas, plan);
    canvas.setAttribute("aria-label", stageText(plan));
    byId("stage-text").textContent = stageText(plan);
    tip.hidden = true;
  };
  new ResizeObserver(([entry]) => {
    width = Math.round(entry.contentRect.width);
    draw();
  }).observe(host);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  canvas.addEventListener("pointermove", (event) => showBlock(canvas, tip, plan, event));
  canvas.addEventListener("pointerleave", () => (tip.hidden = true));
  return draw;
}

// Groups ranks into rows, passes into columns and contributions into cells until each can be seen.
function stagePlan({ b, n, g }, width) {
  const [left, top, right] = [width < 520 ? 46 : 64, 24, 34];
  const area = width - left - right;
  const ranksPerRow = Math.ceil(n / MAX_ROWS);
  const rows = Math.ceil(n / ranksPerRow);
  const passesPerColumn = Math.ceil(g / Math.floor(area / MIN_COLUMN));
  const columns = Math.ceil(g / passesPerColumn);
  const rowHeight = Math.min(Math.max(Math.floor(330 / rows), 20), 92);
  const columnWidth = Math.min(area / columns, 260);
  const inBlock = b * ranksPerRow * passesPerColumn;
  const room = Math.floor((columnWidth - 4) / MIN_CELL) * Math.floor((rowHeight - 4) / MIN_CELL);
  const perCell = Math.ceil(inBlock / room);
  const height = top + rows * rowHeight + 6;
  return { b, n, g, width, height, left, top, rows, columns, ranksPerRow, passesPerColumn, rowHeight, columnWidth, perCell };
}

function paintStage(canvas, plan) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(plan.width * scale);
  canvas.height = Math.round(plan.height * scale);
  canvas.style.height = `${plan.height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(canvas);
  const ink = style.getPropertyValue("--soft");
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  paintLabels(pen, plan, ink, style.fontFamily);
  for (let row = 0; row < plan.rows; row += 1) {
    for (let column = 0; column < plan.columns; column += 1) paintBlock(pen, plan, row, column, dark);
  }
  paintSync(pen, plan, ink);
}

function blockSize({ b, n, g, ranksPerRow, passesPerColumn }, row, column) {
  const ranks = Math.min(ranksPerRow, n - row * ranksPerRow);
  const passes = Math.min(passesPerColumn, g - column * passesPerColumn);
  return b * ranks * passes;
}

function paintBlock(pen, plan, row, column, dark) {
  const cells = Math.ceil(blockSize(plan, row, column) / plan.perCell);
  const [width, height] = [plan.columnWidth - 4, plan.rowHeight - 4];
  const across = cellsAcross(cells, width, height);
  const down = Math.ceil(cells / across);
  const pitch = Math.min(width / across, height / down, 22);
  const [x, y] = [plan.left + column * plan.columnWidth + 2, plan.top + row * plan.rowHeight + (plan.rowHeight - down * pitch) / 2];
  pen.fillStyle = cellColour(plan, row, column, dark);
  const side = Math.max(pitch - (pitch > 7 ? 1.6 : 0.9), 1);
  for (let cell = 0; cell < cells; cell += 1) {
    pen.fillRect(x + (cell % across) * pitch, y + Math.floor(cell / across) * pitch, side, side);
  }
}

// As near to square cells as fits, and a full rectangle of them where a divisor is about as good.
function cellsAcross(cells, width, height) {
  const most = Math.max(Math.floor(width / MIN_CELL), 1);
  const least = Math.ceil(cells / Math.max(Math.floor(height / MIN_CELL), 1));
  const ideal = Math.min(Math.max(Math.sqrt((cells * width) / height), least, 1), most);
  const off = (across) => Math.abs(Math.log(across / ideal));
  let best = 0;
  for (let across = Math.max(least, 1); across <= Math.min(most, cells); across += 1) {
    if (cells % across === 0 && (!best || off(across) < off(best))) best = across;
  }
  return best && off(best) < Math.LN2 ? best : Math.min(Math.ceil(ideal), most);
}

// Hue tells the rank, lightness the pass; row and column tell the same to whoever sees no hue.
function cellColour({ columns }, row, column, dark) {
  const hue = (205 + row * 137.5) % 360;
  const share = columns > 1 ? column / (columns - 1) : 0;
  const light = dark ? 72 - 28 * share : 38 + 28 * share;
  return `hsl(${hue.toFixed(0)} 58% ${light.toFixed(0)}%)`;
}

function paintLabels(pen, plan, ink, family) {
  pen.fillStyle = ink;
  pen.font = `12px ${family}`;
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  const word = plan.left > 50 ? "rank " : "r ";
  for (let row = 0; row < plan.rows; row += 1) {
    pen.fillText(`${word}${row * plan.ranksPerRow}`, 0, plan.top + (row + 0.5) * plan.rowHeight);
  }
  const every = Math.ceil(48 / plan.columnWidth);
  for (let column = 0; column < plan.columns; column += every) {
    const pass = column * plan.passesPerColumn + 1;
    pen.fillText(column ? `${pass}` : "pass 1", plan.left + column * plan.columnWidth + 2, 11);
  }
}

function paintSync(pen, plan, ink) {
  const x = plan.left + plan.columns * plan.columnWidth + 8;
  pen.fillStyle = ink;
  pen.fillRect(x, plan.top, 3, plan.rows * plan.rowHeight - 2);
  pen.save();
  pen.translate(x + 14, plan.top + (plan.rows * plan.rowHeight) / 2);
  pen.rotate(Math.PI / 2);
  pen.textAlign = "center";
  const long = plan.rows * plan.rowHeight > 110;
  pen.fillText(plan.n === 1 ? "update" : long ? "sync, update" : "sync", 0, 0);
  pen.restore();
}

function stageText({ b, n, g, perCell, ranksPerRow, passesPerColumn }) {
  const cell = perCell === 1 ? "one contribution" : `${number(perCell)} contributions`;
  const row = ranksPerRow === 1 ? "a row is a rank" : `a row is ${number(ranksPerRow)} ranks`;
  const column = passesPerColumn === 1 ? "a column is a pass" : `a column is ${number(passesPerColumn)} passes`;
  return `Each cell is ${cell} to one optimizer step of ${count(b * n * g)}; ${row}, ${column}.`;
}

function showBlock(canvas, tip, plan, event) {
  const box = canvas.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left - plan.left) / plan.columnWidth);
  const row = Math.floor((event.clientY - box.top - plan.top) / plan.rowHeight);
  tip.hidden = row < 0 || column < 0 || row >= plan.rows || column >= plan.columns;
  if (tip.hidden) return;
  tip.textContent = blockText(plan, row, column);
  const left = plan.left + (column + 0.5) * plan.columnWidth - tip.offsetWidth / 2;
  tip.style.left = `${Math.min(Math.max(left, 0), box.width - tip.offsetWidth)}px`;
  tip.style.top = `${plan.top + (row + 1) * plan.rowHeight + 4}px`;
}

function blockText(plan, row, column) {
  const { b, n, g, ranksPerRow, passesPerColumn } = plan;
  const [rank, pass] = [row * ranksPerRow, column * passesPerColumn];
  const lastRank = Math.min(rank + ranksPerRow, n) - 1;
  const lastPass = Math.min(pass + passesPerColumn, g);
  const who = `${lastRank > rank ? `ranks ${rank}–${lastRank}` : `rank ${rank}`}, ${lastPass > pass + 1 ? `passes ${pass + 1}–${lastPass}` : `pass ${pass + 1}`}`;
  const held = `${count(blockSize(plan, row, column))} contributions`;
  if (lastRank > rank || lastPass > pass + 1) return `${who}\n${held}`;
  const start = rank * b * g + pass * b;
  return `${who}\n${held}: positions ${count(start)}–${count(start + b - 1)} of the batch`;
}
