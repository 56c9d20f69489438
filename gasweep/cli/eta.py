"""How long is left: steps a run still needs, from runs like it, times what its steps take."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable
from typing import TypeVar

from gasweep.cli.view import RunView, SweepView
from gasweep.results.states import RunState

K = TypeVar("K", bound=Hashable)

_OPEN = (RunState.WAITING, RunState.RUNNING, RunState.INTERRUPTED)


class Eta:
    """Estimates for one moment of a sweep; every number may be None (nothing to go by).

    Steps of a run: those of finished runs of the same B and learning rate, else of the same B, never more
    than its budget. Seconds per step: its own, else those of the same layout, else scaled by B from the
    others. A guess for a progress display; no record and no estimate rests on it.
    """

    def __init__(self, sweep: SweepView) -> None:
        self._sweep = sweep
        runs = list(sweep.runs.values())
        ended = [run for run in runs if run.finished and run.kind == "convergence" and run.optimizer_step]
        self._by_rate = _means(
            ((run.effective_batch_size, run.learning_rate), float(run.optimizer_step or 0)) for run in ended
        )
        self._by_batch = _means((run.effective_batch_size, float(run.optimizer_step or 0)) for run in ended)
        timed = [run for run in runs if run.seconds_per_optimizer_step]
        self._by_layout = _means(
            ((run.layout, run.effective_batch_size), run.seconds_per_optimizer_step or 0.0) for run in timed
        )
        per_example = [
            (run.seconds_per_optimizer_step or 0.0) * run.world_size / run.effective_batch_size
            for run in timed
        ]
        self._worker_s_per_example = statistics.median(per_example) if per_example else None

    def run_s(self, run: RunView) -> float | None:
        """Seconds a run still needs once it runs; 0 for one that has ended; None while nobody runs it."""
        if run.state not in _OPEN:
            return 0.0
        if not self._sweep.is_driven:
            return None
        steps, seconds = self._steps(run), self._seconds(run)
        if steps is None or seconds is None:
            return None
        return max(steps - (run.optimizer_step or 0), 0.0) * seconds

    def sweep_s(self) -> float | None:
        """Seconds until the whole sweep has ended, all workers kept busy."""
        open_runs = [run for run in self._sweep.runs.values() if run.state in _OPEN]
        known = [(run, seconds) for run in open_runs if (seconds := self.run_s(run)) is not None]
        if not open_runs or not known or self._sweep.num_workers is None:
            return 0.0 if not open_runs else None
        work = sum(run.world_size * seconds for run, seconds in known) * len(open_runs) / len(known)
        longest = max(seconds for _, seconds in known)
        return max(work / max(self._sweep.num_workers, 1), longest)

    def _steps(self, run: RunView) -> float | None:
        if run.kind == "probe":
            return run.max_optimizer_steps
        expected = self._by_rate.get(
            (run.effective_batch_size, run.learning_rate), self._by_batch.get(run.effective_batch_size)
        )
        if expected is None or (run.optimizer_step or 0) > expected:
            return run.max_optimizer_steps
        return expected if run.max_optimizer_steps is None else min(expected, run.max_optimizer_steps)

    def _seconds(self, run: RunView) -> float | None:
        own = run.seconds_per_optimizer_step or self._by_layout.get((run.layout, run.effective_batch_size))
        if own is not None or self._worker_s_per_example is None:
            return own
        return self._worker_s_per_example * run.effective_batch_size / run.world_size


def _means(pairs: Iterable[tuple[K, float]]) -> dict[K, float]:
    groups: dict[K, list[float]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return {key: statistics.fmean(values) for key, values in groups.items()}
