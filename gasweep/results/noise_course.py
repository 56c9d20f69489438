"""How the noise scale went over the training of a sweep's runs, one run for each batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gasweep.analysis.noise_scale import NoiseMeasurement
from gasweep.analysis.noise_scale_records import noise_measurements
from gasweep.analysis.noise_scale_window import NoisePoint, noise_trajectory
from gasweep.analysis.study_report import TargetReport
from gasweep.analysis.trials import StudyRun
from gasweep.errors import MeasurementError
from gasweep.results.reader import JournalReader

NUM_POINTS = 48


@dataclass(frozen=True, kw_only=True)
class NoiseCourse:
    """The noise scale of one run along its training; each point is a trailing window with its interval."""

    run_id: str
    effective_batch_size: float
    learning_rate: float | None
    seed: int | str | None
    points: tuple[NoisePoint, ...]


def noise_courses(
    reader: JournalReader, targets: Sequence[TargetReport], runs: Mapping[str, StudyRun]
) -> list[NoiseCourse]:
    """By ascending batch size: the first seed at the rate chosen for the last target that chose one, else at
    the rate whose run went furthest. Batch sizes whose run measured nothing are left out."""
    found = []
    for batch_size in sorted({run.batch_size for run in runs.values()}):
        members = {run_id: run for run_id, run in runs.items() if run.batch_size == batch_size}
        run_id = _representative(members, _chosen_rate(targets, batch_size))
        course = _course(reader, run_id, members[run_id])
        if course is not None:
            found.append(course)
    return found


def _chosen_rate(targets: Sequence[TargetReport], batch_size: float) -> float | None:
    rates = [
        batch.choice.winner.learning_rate
        for target in targets
        for batch in target.batches
        if batch.batch_size == batch_size and batch.choice.winner is not None
    ]
    return rates[-1] if rates else None


def _representative(members: Mapping[str, StudyRun], rate: float | None) -> str:
    def rank(run_id: str) -> tuple[bool, float, str, str]:
        run = members[run_id]
        last = run.points[-1][0] if run.points else 0.0
        return run.learning_rate != rate, -last if rate is None else 0.0, str(run.seed), run_id

    return min(members, key=rank)


def _course(reader: JournalReader, run_id: str, run: StudyRun) -> NoiseCourse | None:
    try:
        steps = noise_measurements(reader.steps(run_id))
        points = noise_trajectory(steps, num_points=NUM_POINTS)
    except MeasurementError:
        return None  # said beside the target, where the same records give its noise scale
    if not any(isinstance(step, NoiseMeasurement) for step in steps):
        return None
    return NoiseCourse(
        run_id=run_id,
        effective_batch_size=run.batch_size,
        learning_rate=run.learning_rate,
        seed=run.seed,
        points=tuple(points),
    )
