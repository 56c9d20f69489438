"""What a fit cannot say by itself: shapes that break its law, delays that hide in it, data too thin."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student_t

from gasweep.analysis.fit import FitResult
from gasweep.analysis.likelihood import Array, Rows, build_rows
from gasweep.analysis.observation import Observation
from gasweep.analysis.seed_variance import summarise_groups
from gasweep.analysis.trials import StudyRun

DELAY_SHARE = 0.05
"""A constant delay above this share of the steps at any batch size is flagged."""
SHAPE_SIGNIFICANCE = 0.01
TIED_SHARE = 0.25
COARSE_SPACING = math.log(1.25)


def diagnose(observations: Sequence[Observation], fit: FitResult, runs: Sequence[StudyRun] = ()) -> list[str]:
    """Flags, as sentences. `runs`: where `observations` came from, for their warm-up."""
    outliers = [outlier.observation for outlier in fit.outliers]
    kept = [item for item in observations if not any(item is outlier for outlier in outliers)]
    if fit.spread is None or not kept:
        return []
    rows = build_rows(kept)
    return [*_thin_data(rows, fit), *_shape(rows, fit), *_delays(fit, runs, rows)]


def _thin_data(rows: Rows, fit: FitResult) -> list[str]:
    summary = summarise_groups(rows, fit.spread.seed_sd if fit.spread else 0.1)
    usable = int(summary.usable.sum())
    sizes = np.bincount(rows.group[np.isfinite(rows.high)], minlength=len(rows.log_batch))
    flags = []
    if usable == 2:
        flags.append("two batch sizes only: the law is assumed, nothing checks it")
    if sizes.max() == 1:
        flags.append(
            "one seed per batch size: seed noise cannot be told from misfit, both are in the interval"
        )
    return [*flags, *_ties(rows), *_coarse(rows)]


def _ties(rows: Rows) -> list[str]:
    """Seeds that agree to the last digit were evaluated too rarely to tell them apart."""
    plain = rows.exact & (rows.spacing == 0.0)
    pairs = tied = 0
    for group in range(len(rows.log_batch)):
        _, counts = np.unique(rows.low[plain & (rows.group == group)], return_counts=True)
        pairs += int(counts.sum() * (counts.sum() - 1) / 2)
        tied += int((counts * (counts - 1) / 2).sum())
    if pairs == 0 or tied < TIED_SHARE * pairs:
        return []
    return [
        f"{100 * tied / pairs:.0f} % of the seed pairs of one batch size took equal steps: evaluations are "
        "coarse, and unless their spacing is declared the interval leaves it out"
    ]


def _coarse(rows: Rows) -> list[str]:
    """A crossing interpolated across a large part of the run is late: the loss curve sags below its chord."""
    wide = rows.exact & (rows.spacing > COARSE_SPACING)
    if not wide.any():
        return []
    worst = int(np.argmax(np.where(wide, rows.spacing, 0.0)))
    batch, share = math.exp(rows.log_batch[rows.group[worst]]), 100 * math.expm1(rows.spacing[worst])
    return [
        f"evaluations are {share:.0f} % of the steps apart at batch {batch:g}: interpolation across so "
        "much of a curve is late, by about a constant number of steps if they are evenly spaced; evaluate "
        "more often"
    ]


def _shape(rows: Rows, fit: FitResult) -> list[str]:
    """Examples to target that fall, or steps that rise, with the batch size: the law allows neither."""
    sigma = fit.spread.seed_sd if fit.spread else 0.1
    summary = summarise_groups(rows, sigma)
    usable = summary.usable
    log_batch, log_steps = rows.log_batch[usable], summary.mean[usable]
    variance = summary.variance[usable] + rows.shared[usable]
    freedom = fit.spread.degrees_of_freedom if fit.spread else 1.0
    flags = []
    pair = _fall(log_steps + log_batch, variance, freedom)
    if pair is not None:
        i, j = pair
        flags.append(
            f"U-shape: examples to target fall from {math.exp(log_steps[i] + log_batch[i]):.4g} at batch "
            f"{math.exp(log_batch[i]):g} to {math.exp(log_steps[j] + log_batch[j]):.4g} at batch "
            f"{math.exp(log_batch[j]):g}, where the law only lets them rise: the small batches did not "
            "run at their best (betas, learning rate, schedule), and B_crit rests on the rest"
        )
    pair = _fall(-log_steps, variance, freedom)
    if pair is not None:
        i, j = pair
        flags.append(
            f"steps to target rise from {math.exp(log_steps[i]):.4g} at batch {math.exp(log_batch[i]):g} to "
            f"{math.exp(log_steps[j]):.4g} at batch {math.exp(log_batch[j]):g}, where the law only lets them "
            "fall: the large batches did not run at their best"
        )
    return flags


def _fall(values: Array, variance: Array, freedom: float) -> tuple[int, int] | None:
    """The pair i < j whose values fall the most, if by more than chance with all pairs tried."""
    count = len(values)
    if count < 2:
        return None
    drop = values[:, None] - values[None, :]
    score = np.triu(drop / np.sqrt(variance[:, None] + variance[None, :]), 1)
    i, j = np.unravel_index(int(np.argmax(score)), score.shape)
    limit = float(student_t.ppf(1.0 - SHAPE_SIGNIFICANCE / (count * (count - 1) / 2), freedom))
    return (int(i), int(j)) if score[i, j] > limit else None


def _delays(fit: FitResult, runs: Sequence[StudyRun], rows: Rows) -> list[str]:
    """Warm-up of a constant number of steps, of which a linear one loses about half."""
    warmups = [run.warmup_steps for run in runs if run.warmup_steps]
    if not warmups:
        return []
    delay = 0.5 * max(warmups)
    least = fit.steps_at(math.exp(rows.log_batch[-1])).value
    if least is None or delay <= DELAY_SHARE * least:
        return []
    implied = without_delay(fit, delay)
    answer = (
        "the fit leaves no steps beside it"
        if implied is None
        else f"without it B_crit would be {implied:.4g}"
    )
    return [
        f"delay: {max(warmups):g} steps of warm-up cost about {delay:g} steps at every batch size, "
        f"{100 * delay / least:.0f} % of the {least:.4g} steps at batch {math.exp(rows.log_batch[-1]):g}; "
        f"a constant delay leaves the fit perfect and its answer too small: {answer}"
    ]


def without_delay(fit: FitResult, delay_steps: float) -> float | None:
    """B_crit as it would be had every run started `delay_steps` optimizer steps later.

    S + d = (S_min + d)(1 + B' / B) with the same E_min, so B' = E_min / (S_min + d) was fitted in place of
    E_min / S_min. None when the delay leaves no steps, or nothing was fitted.
    """
    steps, examples = fit.min_steps.value, fit.min_examples.value
    if steps is None or examples is None or steps <= delay_steps:
        return None
    return examples / (steps - delay_steps)
