"""A sweep as a rich table that fits its terminal: running and failed runs first, then the newest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gasweep.cli.eta import Eta
from gasweep.cli.view import RunView, SweepView
from gasweep.report.numbers import count, duration
from gasweep.results.states import RunState

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

STYLES = {
    RunState.RUNNING: "cyan",
    RunState.REACHED: "green",
    RunState.CENSORED: "yellow",
    RunState.DIVERGED: "magenta",
    RunState.PRUNED: "dim",
    RunState.FAILED: "red",
    RunState.INFEASIBLE: "red",
    RunState.INTERRUPTED: "yellow",
    RunState.WAITING: "dim",
}

_ORDER = {RunState.RUNNING: 0, RunState.FAILED: 1, RunState.INFEASIBLE: 2, RunState.WAITING: 4}
_OTHER = 3  # finished and interrupted runs stand between what needs attention and what only waits

# Column -> the terminal width from which it is shown.
COLUMNS = {
    "state": 0,
    "B": 0,
    "b x N x G": 56,
    "lr": 32,
    "seed": 70,
    "axes": 84,
    "step": 0,
    "loss": 40,
    "eta": 48,
    "why": 110,
}


_GAP = 2  # between two columns
_MIN_REASON_WIDTH = 16


def sweep_view(sweep: SweepView, *, width: int, height: int) -> Group:
    """Progress and as many runs as fit into `height` lines, the rest counted."""
    from rich.console import Group
    from rich.text import Text

    eta = Eta(sweep)
    ordered = sorted(sweep.runs.values(), key=_rank)
    room = max(height - 6, 3)
    shown = ordered if len(ordered) <= room else ordered[: room - 1]
    parts: list[Text | Table] = [
        Text(progress_line(sweep, eta), overflow="ellipsis", no_wrap=True),
        _bar(sweep, min(width, 80)),
        runs_table(shown, eta, width=width),
    ]
    if len(shown) < len(ordered):
        parts.append(Text(f"… and {len(ordered) - len(shown)} more runs", style="dim"))
    return Group(*parts)


def runs_table(runs: list[RunView], eta: Eta, *, width: int) -> Table:
    """One row per run; columns that the width has no room for are left out."""
    from rich.table import Table
    from rich.text import Text

    has_axes, has_reasons = any(run.axes for run in runs), any(run.reason for run in runs)
    columns = [
        name
        for name, needed in COLUMNS.items()
        if width >= needed and (name != "axes" or has_axes) and (name != "why" or has_reasons)
    ]
    rows = [_cells(run, eta) for run in runs]
    if "why" in columns and not _shorten_reasons(rows, columns, width):
        columns.remove("why")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        left = name in ("state", "axes", "why")
        table.add_column(name, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
    for run, cells in zip(runs, rows, strict=True):
        styles = {"state": STYLES[run.state]}
        table.add_row(*(Text(cells[name], style=styles.get(name, "")) for name in columns))
    return table


def _shorten_reasons(rows: list[dict[str, str]], columns: list[str], width: int) -> bool:
    """Give reasons the width that the numbers leave (rich would shrink all alike); False: too little."""
    others = [name for name in columns if name != "why"]
    taken = sum(max(len(name), *(len(cells[name]) for cells in rows)) + _GAP for name in others)
    room = width - taken
    for cells in rows:
        if len(cells["why"]) > room:
            cells["why"] = cells["why"][: max(room - 1, 0)] + "…"
    return room >= _MIN_REASON_WIDTH


def progress_line(sweep: SweepView, eta: Eta) -> str:
    """E.g. "quickstart: 12/126 runs done, 2 running, 1 failed, about 3.2 min left"."""
    counts = sweep.counts
    parts = [f"{sweep.name}: {sweep.num_done}/{len(sweep.runs)} runs done"]
    for state in (RunState.RUNNING, RunState.FAILED, RunState.INFEASIBLE, RunState.INTERRUPTED):
        if counts[state.value]:
            parts.append(f"{counts[state.value]} {state.value}")
    left = eta.sweep_s()
    if left:
        parts.append(f"about {duration(left)} left")
    return ", ".join(parts) + ("" if sweep.driver is None else f" ({sweep.driver})")


def run_line(run: RunView) -> str:
    """One run on one plain line, without its state."""
    axes = "".join(f" {path}={value}" for path, value in run.axes.items())
    probe = "probe " if run.kind == "probe" else ""
    if run.syncs_every_micro_step:
        axes += " syncing every micro-step"
    return f"{probe}B={run.effective_batch_size} {run.layout} lr={run.learning_rate:g} seed={run.seed}{axes}"


def measured(run: RunView) -> str:
    """What a run has come to: step, loss or evaluation, seconds per step of a probe."""
    if run.kind == "probe":
        seconds = run.seconds_per_optimizer_step
        return "" if seconds is None else f"{duration(seconds)} per optimizer step"
    parts = [] if run.optimizer_step is None else [f"step {run.optimizer_step}"]
    parts += [f"{name} {value:.4g}" for name, value in (run.evaluation or {}).items()]
    return ", ".join(parts)


def _rank(run: RunView) -> tuple[int, float]:
    return _ORDER.get(run.state, _OTHER), -run.changed_s


def _cells(run: RunView, eta: Eta) -> dict[str, str]:
    # What the target is about, where it has been measured; else the loss of the last optimizer step.
    loss = next(iter(run.evaluation.values())) if run.evaluation else run.loss
    left = eta.run_s(run) if run.state is RunState.RUNNING else None
    return {
        "state": f"{run.state_word}{' probe' if run.kind == 'probe' else ''}",
        "B": f"{run.effective_batch_size:,}",
        "b x N x G": run.layout,
        "lr": f"{run.learning_rate:g}",
        "seed": str(run.seed),
        "axes": " ".join(f"{path}={value}" for path, value in run.axes.items()),
        "step": "" if run.optimizer_step is None else count(run.optimizer_step),
        "loss": "" if loss is None else f"{loss:.4g}",
        "eta": duration(left) if left else "",
        "why": run.reason or "",
    }


def _bar(sweep: SweepView, width: int) -> Text:
    from rich.text import Text

    total, done = max(len(sweep.runs), 1), sweep.num_done
    running = sweep.counts[RunState.RUNNING.value]
    room = max(width - 2, 8)
    filled, partial = room * done // total, room * (done + running) // total - room * done // total
    return Text.assemble(
        ("#" * filled, "green"), ("-" * partial, "cyan"), ("." * (room - filled - partial), "dim")
    )
