"""With and without accumulation, side by side: the same run, and how far rounding drives it apart.

    python experiments/ab_accumulation.py [--tasks digits ...] [--steps 200] [--seeds 2] [--folder docs/img]

Every shipped task is trained with equal seeds in two layouts of one effective batch: one group (G = 1), and
eight groups added up (G = 8), under `determinism: fast` and again under `bitwise`. Writes one picture per
task, `ab_accumulation_TASK.png`: training and evaluation loss of both layouts, and below them the relative
deviation of the two training losses at each optimizer step. Prints per task and mode the largest deviation in
the first ten steps and in all, beside how far two seeds are apart (median over steps), which is what a
deviation has to be small against.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import EvaluationConfig, OptimizerConfig, SweepConfig
from gasweep.results.records import EvalRecord, StepRecord
from gasweep.training import ProcessContext, train_run

GROUPS = 8
MODES = ("fast", "bitwise")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A shipped task as it is trained here. optimizer: name; learning_rate: its rate."""

    task: dict[str, Any]
    batch_size: int
    optimizer: str
    learning_rate: float


SETTINGS = {
    "digits": Setting(
        task={"_target_": "gasweep.tasks.Digits"}, batch_size=64, optimizer="sgd", learning_rate=0.3
    ),
    "fashion_mnist": Setting(
        task={"_target_": "gasweep.tasks.FashionMnist"}, batch_size=64, optimizer="sgd", learning_rate=0.1
    ),
    "text_lm": Setting(
        task={"_target_": "gasweep.tasks.TextLm", "width": 32, "context": 32, "mask_fraction": 0.2},
        batch_size=32,
        optimizer="adamw",
        learning_rate=3e-3,
    ),
    "noisy_quadratic": Setting(
        task={"_target_": "gasweep.tasks.NoisyQuadratic"}, batch_size=16, optimizer="sgd", learning_rate=0.1
    ),
}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Losses per item by optimizer step, and evaluation losses at theirs."""

    losses: np.ndarray
    eval_steps: list[int]
    eval_losses: list[float]
    parameters: str


class Records:
    """A sink that keeps every record."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []

    def __call__(self, *, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
        self.steps += steps


def train(setting: Setting, *, groups: int, mode: str, seed: int, steps: int) -> Curve:
    total = setting.batch_size
    config = SweepConfig(
        task=dict(setting.task),
        optimizer=OptimizerConfig(name=setting.optimizer),
        evaluation=EvaluationConfig(every_optimizer_steps=max(1, steps // 20), max_examples=512),
        determinism=mode,
        grain=total // GROUPS,
    )
    config.budget.max_optimizer_steps = steps
    config.noise_scale.enabled = False
    layout = Layout(micro_batch_size=total // groups, world_size=1, accumulation_steps=groups)
    spec = RunSpec(
        run_id="ab",
        kind="convergence",
        effective_batch_size=total,
        layout=layout,
        learning_rate=setting.learning_rate,
        seed=seed,
        config=config,
    )
    records = Records()
    result = train_run(
        spec, process=ProcessContext(), sink=records, run_directory=None, should_stop=lambda: False
    )
    assert result is not None
    losses = [float("nan") if record.loss is None else record.loss for record in records.steps]
    return Curve(
        losses=np.array(losses),
        eval_steps=[record.optimizer_step for record in result.evaluations],
        eval_losses=[record.metrics["eval_loss"] for record in result.evaluations],
        parameters=str(result.parameter_sha256),
    )


def deviation(a: Curve, b: Curve) -> np.ndarray:
    """|a - b| relative to the run's typical loss, per optimizer step."""
    return np.abs(a.losses - b.losses) / np.median(np.abs(b.losses))


def compare(name: str, *, steps: int, seeds: int, folder: Path) -> list[str]:
    """One line per mode; draws the task's picture."""
    setting, lines = SETTINGS[name], []
    curves = {
        (mode, groups, seed): train(setting, groups=groups, mode=mode, seed=seed, steps=steps)
        for mode in MODES
        for groups in (1, GROUPS)
        for seed in range(seeds)
    }
    between_seeds = deviation(curves["fast", 1, 0], curves["fast", 1, seeds - 1])
    for mode in MODES:
        apart = [deviation(curves[mode, GROUPS, seed], curves[mode, 1, seed]) for seed in range(seeds)]
        same = all(
            curves[mode, GROUPS, seed].parameters == curves[mode, 1, seed].parameters for seed in range(seeds)
        )
        early, ever = max(a[:10].max() for a in apart), max(a.max() for a in apart)
        lines.append(
            f"{name:<16} {mode:<8} {early:9.1e} {ever:9.1e} "
            f"{float(np.median(between_seeds)):13.1e}  {'equal bits' if same else 'rounding'}"
        )
    draw(name, curves, setting, folder / f"ab_accumulation_{name}.png")
    return lines


def draw(name: str, curves: dict[tuple[str, int, int], Curve], setting: Setting, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 6), sharex=True, height_ratios=(2, 1))
    figure.set_layout_engine("constrained")
    total = setting.batch_size
    figure.suptitle(f"{name}: B={total} as {total} x 1 x 1 and {total // GROUPS} x 1 x {GROUPS}, seed 0")
    for column, mode in enumerate(MODES):
        one, many = curves[mode, 1, 0], curves[mode, GROUPS, 0]
        steps = np.arange(1, len(one.losses) + 1)
        top, bottom = axes[0, column], axes[1, column]
        top.plot(steps, one.losses, color="#1f77b4", linewidth=2.5, alpha=0.5, label="training loss, G=1")
        top.plot(steps, many.losses, color="#d62728", linewidth=0.8, label=f"training loss, G={GROUPS}")
        top.plot(one.eval_steps, one.eval_losses, "o", color="#1f77b4", label="evaluation, G=1")
        top.plot(many.eval_steps, many.eval_losses, "x", color="#d62728", label=f"evaluation, G={GROUPS}")
        top.set_title(f"determinism: {mode}")
        top.legend(fontsize=8)
        apart = deviation(many, one)
        if apart.max() > 0:
            bottom.semilogy(steps, np.maximum(apart, 1e-10), color="#444444", linewidth=0.8)
        else:
            bottom.text(0.5, 0.5, "0 at every step", transform=bottom.transAxes, ha="center")
            bottom.set_yticks([])
        bottom.set_xlabel("optimizer step")
    axes[0, 0].set_ylabel("loss per item")
    axes[1, 0].set_ylabel("deviation, relative")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=sorted(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("docs/img"))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        f"G = 1 against G = {GROUPS}, {options.steps} optimizer steps, {options.seeds} seeds",
        f"{'task':<16} {'mode':<8} {'10 steps':>9} {'all':>9} {'between seeds':>13}  parameters",
    ]
    print("\n".join(lines), flush=True)
    for name in options.tasks:
        lines += compare(name, steps=options.steps, seeds=options.seeds, folder=options.folder)
        print("\n".join(lines[-len(MODES) :]), flush=True)
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
