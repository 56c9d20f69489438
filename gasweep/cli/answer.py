"""The answer of a sweep as far as it has come: estimates per setting, spreads, plots, where everything is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gasweep.analysis.steps_to_target import TargetRule
from gasweep.report.numbers import number
from gasweep.report.tables import estimate_lines, steps_table
from gasweep.results.columns import run_row
from gasweep.results.directory import JOURNAL_FILE, RUNS_FOLDER, SWEEP_FILE, WANDB_FOLDER
from gasweep.results.queries import fit_sweep, stored_targets
from gasweep.results.reader import JournalReader
from gasweep.results.spread import Spread, spreads

PLOT_NAME = "critical_batch_size"
RATES_PLOT_NAME = "learning_rates"


@dataclass(frozen=True, kw_only=True)
class LabelledStudy:
    """`fit`'s JSON object of one setting of the extra axes; `label` is empty when there are none."""

    label: str
    study: dict[str, Any]
    axes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Everything a finished, or interrupted, sweep can say; or a file of measurements.

    unit: what batch sizes and E_min count, "examples" or "tokens".
    """

    directory: Path
    studies: list[LabelledStudy]
    spreads: list[Spread]
    unit: str = "examples"
    rows: list[dict[str, Any]] = field(default_factory=list)
    plots: list[Path] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """`fit`'s object, with the spreads and the files beside its targets."""
        return {
            **self.fit_dict(),
            "spreads": [spread.to_dict() for spread in self.spreads],
            "plots": [str(path) for path in self.plots],
            "directory": str(self.directory),
        }

    def fit_dict(self) -> dict[str, Any]:
        """`fit`'s object: the targets of all settings; how B_crit grows over several targets of one."""
        growth = [
            {"axes": entry.axes, **point}
            for entry in self.studies
            for point in entry.study.get("growth") or ()
        ]
        return {
            "targets": [target for entry in self.studies for target in entry.study["targets"]],
            "unit": self.unit,
            **({"growth": growth} if growth else {}),
        }

    def summary(self) -> dict[str, Any]:
        """The estimates alone, keyed by setting and target where there are several."""
        found: dict[str, Any] = {}
        for entry in self.studies:
            for target in entry.study["targets"]:
                name = " ".join(filter(None, [entry.label, target["target"]]))
                found[name] = {key: value for key, value in target.items() if _is_estimate(value)}
                found[name]["flags"] = target["flags"]
        return next(iter(found.values())) if len(found) == 1 else found

    def table(self) -> list[dict[str, Any]]:
        """A row per run."""
        return self.rows

    def estimates(self) -> list[str]:
        """Steps per batch size, the estimates with their flags, the scatter."""
        lines: list[str] = []
        if not self.studies:
            lines += ["no target: nothing to estimate (set target.value)", ""]
        for entry in self.studies:
            heading = [entry.label, ""] if entry.label else []
            lines += [*heading, *steps_table(entry.study, unit=self.unit), ""]
            lines += [*estimate_lines(entry.study, unit=self.unit), ""]
        return lines + [line for spread in self.spreads for line in spread_lines(spread)]

    def lines(self) -> list[str]:
        """What `gasweep run` says last."""
        return self.estimates() + self.files()

    def files(self) -> list[str]:
        """Where each result is stored."""
        stored = [
            ("config", SWEEP_FILE),
            ("results", JOURNAL_FILE),
            ("logs, checkpoints", f"{RUNS_FOLDER}/<run id>/"),
            ("W&B runs", f"{WANDB_FOLDER}/"),
        ]
        lines = [
            f"  {what:<18} {self.directory / name}"
            for what, name in stored
            if (self.directory / name.split("/")[0]).exists()
        ]
        return ["stored in", *lines, *(f"  {'plot':<18} {path}" for path in self.plots)]


def answer_of(
    directory: Path,
    *,
    plot: bool = True,
    targets: Sequence[TargetRule] | None = None,
    base_batch_size: float | None = None,
) -> Answer:
    """Read the journal, fit, and (re)draw the plots below `directory`. Works while a driver writes.

    targets: others than the sweep's own. base_batch_size: see `fit_study`.
    """
    with JournalReader.open(directory) as reader:
        rules = stored_targets(reader) if targets is None else targets
        reports = fit_sweep(reader, targets=rules, base_batch_size=base_batch_size) if rules else []
        scatter = spreads(reader, reports)
        rows = [run_row(run, reader.result(run.run_id)) for run in reader.runs()]
    studies = [
        LabelledStudy(label=entry.setting.label, study=entry.to_dict(), axes=entry.setting.axes)
        for entry in reports
    ]
    plots = [path for entry in studies for path in draw(entry, directory)] if plot else []
    return Answer(directory=directory, studies=studies, spreads=scatter, rows=rows, plots=plots)


def draw(entry: LabelledStudy, folder: Path) -> list[Path]:
    """The PNGs of one study; settings of extra axes get names of their own."""
    from gasweep.report.plots import plot_critical_batch_size, plot_learning_rates

    return [
        plot_critical_batch_size(entry.study, _named(folder / f"{PLOT_NAME}.png", entry)),
        plot_learning_rates(entry.study, _named(folder / f"{RATES_PLOT_NAME}.png", entry)),
    ]


def draw_to(studies: Sequence[LabelledStudy], path: Path, *, unit: str = "examples") -> list[Path]:
    """Both curves of each study at `path`, settings of extra axes beside it."""
    from gasweep.report.plots import plot_critical_batch_size

    return [plot_critical_batch_size(entry.study, _named(path, entry), unit=unit) for entry in studies]


def _named(path: Path, entry: LabelledStudy) -> Path:
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", entry.label).strip("-")
    return path.with_name(f"{path.stem}-{slug}.png" if slug else f"{path.stem}.png")


def spread_lines(spread: Spread) -> list[str]:
    """How far steps to target scatter over factorisations, beside how far they do over seeds."""
    where = "".join(f" {path}={value}" for path, value in spread.axes.items())
    return [
        f"scatter of steps to {spread.target}{where}, at the chosen learning rates (standard deviation)",
        f"  {'over factorisations':<30} "
        + _percent(
            spread.factorisations, spread.num_layout_groups, "sweep.mode=full repeats runs in several"
        ),
        f"  {'over seeds':<30} "
        + _percent(spread.seeds, spread.num_seed_groups, "needs two seeds that reached the target"),
        "",
    ]


def _percent(value: float | None, num_groups: int, advice: str) -> str:
    if value is None:
        return f"not measured ({advice})"
    text = "< 0.001" if 0 < value < 1e-5 else number(100 * value)
    return f"{text} % ({num_groups} groups)"


def _is_estimate(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"value", "low", "high", "reason"}
