// Wires the parts together around one choice: which target is looked at.

function main() {
  const data = JSON.parse(byId("report-data").textContent);
  setUpRuns(data.runs, data.left_out.runs);
  const picker = byId("target");
  const selected = () => (picker ? Number(picker.value) : 0);
  if (!data.targets.length) {
    setUpCompose(data, selected);
    return;
  }
  const redrawCurves = setUpCurves(data, selected);
  const parts = [setUpKnee(data, selected, redrawCurves), setUpRates(data, selected), setUpNoise(data, selected), setUpCost(data, selected), setUpCompose(data, selected)];
  const update = () => {
    for (const panel of document.querySelectorAll("[data-target]")) panel.hidden = Number(panel.dataset.target) !== selected();
    for (const part of parts) part();
  };
  if (picker) picker.addEventListener("input", update);
  update();
}

main();
