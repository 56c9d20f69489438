"""Take one optimizer step in several layouts from common parameters, and compare."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from gasweep.config.run_spec import RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.errors import ConfigError, GasweepError, TaskError
from gasweep.tasks.resolve import resolve_task
from gasweep.training.local_ranks import LocalRanks
from gasweep.training.process import ProcessContext
from gasweep.training.verify.causes import find_causes, is_random
from gasweep.training.verify.choose import MAX_LAYOUTS, choose_runs
from gasweep.training.verify.compare import (
    ORDER,
    Bounds,
    Pair,
    Verdict,
    compare,
    farthest,
    narrow_bounds,
    own_bounds,
    same_bits,
    shared_by_equals,
    wide_bounds,
)
from gasweep.training.verify.report import Verification
from gasweep.training.verify.subject import Subject
from gasweep.training.verify.take_step import Taken, make_start, take_step
from gasweep.training.verify.widened import widened

WITHOUT_DROPOUT = "compared in float64 with dropout off, the layouts "


def verify(
    config: SweepConfig,
    *,
    effective_batch_size: int | None = None,
    max_world_size: int = 2,
    max_layouts: int = MAX_LAYOUTS,
    device: str = "cpu",
    ranks: LocalRanks | None = None,
) -> Verification:
    """Whether the layouts of one effective batch compute the same optimizer step.

    All layouts start from the same checkpoint, two steps into the run; trajectories are never compared. They
    are run as configured and, unless that gave equal bits, in float64 without dropout, where rounding cannot
    be mistaken for anything else. Up to `max_world_size` processes are started on this machine, or `ranks`
    are used; device: "cpu" or "cuda" (one GPU per process).

    Raises ConfigError for a config with nothing to compare, and RunError for a task that fails by itself.
    """
    if device == "cuda":
        max_world_size = min(max_world_size, _require_gpus())
    runs = choose_runs(
        config,
        effective_batch_size=effective_batch_size,
        max_world_size=max_world_size,
        max_layouts=max_layouts,
    )
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gasweep-verify-"))
        if ranks is None:
            threads = config.cluster.threads_per_worker
            ranks = stack.enter_context(LocalRanks(device=device, num_threads=threads))
        return _Verifier(runs, ranks=ranks, folder=Path(folder)).run()


class _Verifier:
    def __init__(self, runs: Sequence[RunSpec], *, ranks: LocalRanks, folder: Path) -> None:
        self._runs = list(runs)
        self._all = list(runs)
        self._ranks = ranks
        self._folder = folder
        self._failures: list[str] = []
        self._notes: list[str] = []
        self._reference: float | None = None

    def run(self) -> Verification:
        taken = self._take_own()
        if len(taken) > 1 and not self._failures and all(same_bits(taken[0], t) for t in taken[1:]):
            self._notes.append("gradients, loss and updated parameters have equal bits, as configured")
            return self._answer(self._compare(taken), causes=[])
        if len(taken) < 2:
            return self._answer([], causes=[*self._failures, *self._causes()])
        bounds, agree = self._bounds(taken, self._take_wide())
        pairs = self._compare(taken, bounds=bounds, agree=agree)
        causes = self._causes()
        if any(is_random(cause) for cause in causes):
            told = "agree to rounding" if all(p.equal != "different" for p in pairs) else "differ too"
            self._notes.append(WITHOUT_DROPOUT + told)
            pairs = self._compare(taken)
        if not self._failures and all(pair.equal != "different" for pair in pairs):
            return self._answer(pairs, causes=[])
        return self._answer(pairs, causes=[*self._failures, *causes] or [shared_by_equals(pairs)])

    def _take_own(self) -> list[Taken]:
        """The step as configured. Layouts that fail are dropped, and their errors kept as causes."""
        start = self._folder / "own"
        taken, alive = [], []
        for run in self._runs:
            try:
                if not start.exists():
                    self._make_start(run, start, silent=False)
                taken.append(self._step(run, start, silent=False))
                alive.append(run)
            except TaskError as error:
                self._failures.append(f"the task breaks its contract: {error}")
                break
            except GasweepError as error:
                self._failures.append(f"{run.layout} cannot take the step: {_last_line(error)}")
        self._runs = alive
        return taken

    def _take_wide(self) -> list[Taken] | None:
        """The same layouts in float64 with dropout off; None where the task does not run so."""
        runs = [widened(run) for run in self._runs]
        try:
            self._make_start(runs[0], self._folder / "wide", silent=True)
            return [self._step(run, self._folder / "wide", silent=True) for run in runs]
        except GasweepError as error:
            self._notes.append(f"the task does not run in float64: {_last_line(error)}")
            return None

    def _bounds(self, taken: list[Taken], wide: list[Taken] | None) -> tuple[Bounds, list[list[bool]]]:
        precision = self._runs[0].config.precision
        if wide is None:
            self._notes.append("so rounding is judged by a coarse bound at the run's own precision")
            return narrow_bounds(taken[0], precision=precision), [[True] * len(taken) for _ in taken]
        limits = wide_bounds(wide[0])
        self._reference = max(farthest(one, wide[0]) for one in taken)
        agree = [[limits.hold(a, b) for b in wide] for a in wide]
        return own_bounds(taken[0], wide[0], precision=precision), agree

    def _compare(
        self, taken: list[Taken], *, bounds: Bounds | None = None, agree: list[list[bool]] | None = None
    ) -> list[Pair]:
        return compare([run.layout for run in self._runs], taken, bounds=bounds, agree=agree)

    def _causes(self) -> list[str]:
        causes: list[str] = self._ranks.run(1, examine, spec=self._all[0])[0]
        return causes

    def _make_start(self, run: RunSpec, folder: Path, *, silent: bool) -> None:
        self._ranks.run(run.layout.world_size, make_start, spec=run, folder=folder, silent=silent)

    def _step(self, run: RunSpec, start: Path, *, silent: bool) -> Taken:
        output = self._folder / "taken.pt"
        self._ranks.run(run.layout.world_size, take_step, spec=run, start=start, output=output, silent=silent)
        return Taken.load(output)

    def _answer(self, pairs: list[Pair], *, causes: list[str]) -> Verification:
        verdicts: set[Verdict] = {pair.equal for pair in pairs}
        if causes or not pairs:
            verdicts.add("different")
        return Verification(
            equal=next(verdict for verdict in ORDER if verdict in verdicts),
            effective_batch_size=self._all[0].effective_batch_size,
            layouts=[run.layout for run in self._all],
            pairs=pairs,
            causes=causes,
            reference_deviation=self._reference,
            notes=self._notes,
        )


def examine(process: ProcessContext, *, spec: RunSpec) -> list[str]:
    """The known causes of differences in `spec`'s task, looked for in float64 where it runs so."""
    device = torch.device(process.device)
    task = resolve_task(spec.config.task)
    bitwise = spec.config.determinism == "bitwise"
    subject = Subject(spec, task, device=device, wide=True)
    try:
        with subject.restored():
            subject.ask(subject.indices(2)[0])
    except Exception:
        subject = Subject(spec, task, device=device, wide=False)
    return find_causes(subject, bitwise=bitwise)


def _require_gpus() -> int:
    if not torch.cuda.is_available():
        raise ConfigError("--device=cuda: torch finds no GPU here; use --device cpu")
    return torch.cuda.device_count()


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
