"""Whatever the observations, the fit answers or says why not: no exception, no NaN, ordered ends."""

from __future__ import annotations

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from gasweep.analysis.fit import fit_critical_batch_size
from gasweep.analysis.observation import Observation
from gasweep.analysis.study import StudyRun, fit_study

STEPS = st.one_of(st.floats(1e-3, 1e9), st.sampled_from([1.0, 2.0, 100.0, 100.0, 1000.0]))
BATCH = st.sampled_from([1.0, 8.0, 16.0, 64.0, 1000.0, 1e6])


@st.composite
def observation(draw: st.DrawFn) -> Observation:
    batch, value = draw(BATCH), draw(STEPS)
    kind = draw(st.sampled_from(["exact", "exact", "interpolated", "interval", "left", "censored", "bound"]))
    shared = {"batch_size": batch, "seed": draw(st.integers(0, 4))}
    if kind == "censored":
        return Observation(**shared, censored_at=value)
    if kind == "interval":
        return Observation(**shared, low=value, high=value * draw(st.floats(1.0, 3.0)))
    if kind == "left":
        return Observation(**shared, low=0.0, high=value)
    if kind == "interpolated":
        return Observation(**shared, steps=value, low=0.9 * value, high=1.1 * value)
    return Observation(**shared, steps=value, is_upper_bound=kind == "bound")


@settings(max_examples=150, deadline=None)
@given(st.lists(observation(), max_size=14))
def test_any_observations(items: list[Observation]) -> None:
    fit = fit_critical_batch_size(items)
    for estimate in (fit.critical_batch_size, fit.min_steps, fit.min_examples, fit.critical_batch_size_20pct):
        ends = [end for end in (estimate.low, estimate.value, estimate.high) if end is not None]
        assert ends == sorted(ends)
        assert all(math.isfinite(end) and end > 0 for end in ends)
        assert (estimate.value is None) == (estimate.reason is not None)
    band = fit.steps_at(32.0)
    if band.value is not None:
        assert (band.low or 0.0) <= band.value * (1 + 1e-9)
        assert band.value <= (band.high or math.inf) * (1 + 1e-9)


@st.composite
def study_run(draw: st.DrawFn) -> StudyRun:
    state = draw(st.sampled_from(["reached", "reached", "reached", "censored", "diverged", "pruned"]))
    value = draw(st.floats(1.0, 1e5))
    return StudyRun(
        batch_size=draw(BATCH),
        learning_rate=draw(st.sampled_from([0.01, 0.1, 1.0])),
        seed=draw(st.one_of(st.none(), st.integers(0, 2))),
        steps=value if state == "reached" else None,
        last_step=draw(st.one_of(st.none(), st.just(value))),
        state=state,
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(study_run(), max_size=25))
def test_any_study(runs: list[StudyRun]) -> None:
    report = fit_study(runs).to_dict()
    json.dumps(report, allow_nan=False)
    batches = [one["effective_batch_size"] for target in report["targets"] for one in target["observations"]]
    assert set(batches) == {run.batch_size for run in runs}
