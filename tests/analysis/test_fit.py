"""The fit: analytic recovery, planted parameters, one-sided truths, and data that tell nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import linregress
from scipy.stats import t as student_t

from gasweep.analysis.fit import fit_critical_batch_size
from gasweep.analysis.observation import Observation
from tests.analysis.planted import BATCHES, observations, steps


def test_c30_names_three_definitions_of_one_law() -> None:
    """C30: S(B) = 100 (1 + 128 / B): B_crit 128; 20 % batch 44.8 from B0 = 16, 25.6 from the limit B -> 0."""
    exact = [Observation(batch_size=batch, steps=steps(batch)) for batch in BATCHES if batch >= 16]
    fit = fit_critical_batch_size(exact)
    assert fit.critical_batch_size.value == pytest.approx(128.0, rel=1e-3)
    assert fit.min_steps.value == pytest.approx(100.0, rel=1e-3)
    assert fit.min_examples.value == pytest.approx(12800.0, rel=1e-3)
    assert fit.critical_batch_size_20pct.value == pytest.approx(44.8, rel=1e-3)
    assert fit.base_batch_size == 16.0
    limit = fit_critical_batch_size(exact, base_batch_size=0.0)
    assert limit.critical_batch_size_20pct.value == pytest.approx(25.6, rel=1e-3)


def test_twenty_percent_batch_needs_20_percent_more_steps_than_perfect_scaling() -> None:
    fit = fit_critical_batch_size(observations())
    batch = fit.critical_batch_size_20pct.value
    assert batch is not None
    perfect = (fit.steps_at(8.0).value or 0.0) * 8.0 / batch
    assert fit.steps_at(batch).value == pytest.approx(1.2 * perfect, rel=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_planted_parameters_lie_in_their_intervals(seed: int) -> None:
    """Seeds are fixed; over many the share is measured by experiments/coverage.py."""
    fit = fit_critical_batch_size(observations(seed=seed, seeds=5))
    for estimate, truth in (
        (fit.critical_batch_size, 128.0),
        (fit.min_steps, 100.0),
        (fit.min_examples, 12800.0),
    ):
        assert estimate.low is not None
        assert estimate.high is not None
        assert estimate.low <= truth <= estimate.high
        assert estimate.value == pytest.approx(truth, rel=0.1)


def test_answer_does_not_depend_on_units_of_steps_or_batches() -> None:
    base = fit_critical_batch_size(observations())
    scaled = fit_critical_batch_size(
        [
            replace(item, batch_size=item.batch_size * 7.0, steps=(item.steps or 0.0) * 1e3)
            for item in observations()
        ]
    )
    assert scaled.critical_batch_size.value == pytest.approx(
        7.0 * (base.critical_batch_size.value or 0), rel=1e-3
    )
    assert scaled.critical_batch_size.high == pytest.approx(
        7.0 * (base.critical_batch_size.high or 0), rel=1e-3
    )
    assert scaled.min_steps.low == pytest.approx(1e3 * (base.min_steps.low or 0), rel=1e-3)


def test_order_of_observations_does_not_matter() -> None:
    items = observations()
    assert (
        fit_critical_batch_size(items[::-1]).critical_batch_size
        == fit_critical_batch_size(items).critical_batch_size
    )


def test_interval_of_the_level_matches_students_t_where_it_is_linear() -> None:
    """With steps independent of B the law is log S = const, so S_min's interval is that of a mean.

    At theta = -inf the model is linear; the profile over theta can only widen the interval beyond it.
    """
    generator = np.random.default_rng(3)
    items = [
        Observation(batch_size=batch, steps=math.exp(5.0 + 0.1 * generator.standard_normal()), seed=seed)
        for batch in (1e6, 2e6, 4e6, 8e6)
        for seed in range(5)
    ]
    logs = np.log([item.steps or 0.0 for item in items])
    half = student_t.ppf(0.975, len(logs) - 2) * logs.std(ddof=1) / math.sqrt(len(logs))
    fit = fit_critical_batch_size(items)
    assert fit.critical_batch_size.low is None
    assert fit.min_steps.high is not None
    assert math.log(fit.min_steps.high) == pytest.approx(logs.mean() + half, abs=0.02)


def test_perfect_scaling_gives_a_lower_bound_and_no_number() -> None:
    fit = fit_critical_batch_size(observations((1.0, 2.0, 4.0, 8.0), critical=1e5))
    assert fit.critical_batch_size.value is None
    assert fit.critical_batch_size.high is None
    assert 8.0 < (fit.critical_batch_size.low or 0.0) < 1e5
    assert "larger batch sizes are needed" in (fit.critical_batch_size.reason or "")
    assert fit.min_steps.low is None
    assert fit.min_steps.high is not None
    assert fit.min_examples.value == pytest.approx(100.0 * 1e5, rel=0.1)


def test_no_scaling_gives_an_upper_bound_and_no_number() -> None:
    fit = fit_critical_batch_size(observations((1e5, 2e5, 4e5, 8e5), critical=10.0))
    assert fit.critical_batch_size.value is None
    assert fit.critical_batch_size.low is None
    assert 10.0 < (fit.critical_batch_size.high or 0.0) < 1e5
    assert "smaller batch sizes are needed" in (fit.critical_batch_size.reason or "")
    assert fit.min_steps.value == pytest.approx(100.0, rel=0.1)


def test_noise_that_hides_everything_is_not_identifiable() -> None:
    fit = fit_critical_batch_size(observations((100.0, 110.0, 120.0), seed_sd=0.5))
    assert (fit.critical_batch_size.value, fit.critical_batch_size.low, fit.critical_batch_size.high) == (
        None,
    ) * 3
    assert "not identifiable" in (fit.critical_batch_size.reason or "")


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([], "no run reached the target"),
        (
            [Observation(batch_size=8, censored_at=100.0), Observation(batch_size=16, censored_at=100.0)],
            "no run",
        ),
        ([Observation(batch_size=8, steps=100.0 + k, seed=k) for k in range(5)], "at one batch size only"),
        (
            [Observation(batch_size=8, steps=100.0), Observation(batch_size=64, steps=30.0)],
            "two runs determine",
        ),
    ],
)
def test_too_little_is_said(items: list[Observation], reason: str) -> None:
    fit = fit_critical_batch_size(items)
    for estimate in (fit.critical_batch_size, fit.min_steps, fit.min_examples, fit.critical_batch_size_20pct):
        assert estimate.value is None
        assert reason in (estimate.reason or "")
    assert fit.steps_at(10.0).value is None


def test_two_batch_sizes_with_seeds_give_the_interval_of_two_means() -> None:
    """The law then has as many parameters as means, so B_crit follows from the ratio of the two."""
    fit = fit_critical_batch_size(observations((16.0, 256.0), seeds=4, seed_sd=0.03))
    low, high = fit.critical_batch_size.low, fit.critical_batch_size.high
    assert low is not None
    assert high is not None
    assert low < 128.0 < high


def test_outlier_seed_is_named_and_does_not_move_the_answer() -> None:
    clean = observations()
    corrupt = [
        replace(item, steps=(item.steps or 0.0) * (10.0 if index == 10 else 1.0))
        for index, item in enumerate(clean)
    ]
    fit = fit_critical_batch_size(corrupt)
    assert [outlier.observation for outlier in fit.outliers] == [corrupt[10]]
    assert any("seed 1 at batch 64" in flag for flag in fit.flags)
    base = fit_critical_batch_size([item for index, item in enumerate(clean) if index != 10])
    assert fit.critical_batch_size == base.critical_batch_size


def test_of_two_seeds_the_one_off_the_curve_is_the_outlier() -> None:
    clean = observations(seeds=2)
    corrupt = [
        replace(item, steps=(item.steps or 0.0) / (10.0 if index == 6 else 1.0))
        for index, item in enumerate(clean)
    ]
    fit = fit_critical_batch_size(corrupt)
    assert [outlier.observation for outlier in fit.outliers] == [corrupt[6]]


def test_clean_seeds_are_rarely_accused() -> None:
    accused = sum(bool(fit_critical_batch_size(observations(seed=seed)).outliers) for seed in range(60))
    assert accused <= 3


def test_a_batch_off_the_law_is_misfit_not_an_outlier() -> None:
    items = [
        replace(item, steps=(item.steps or 0.0) * (1.5 if item.batch_size == 64 else 1.0))
        for item in observations(seeds=5, seed_sd=0.02)
    ]
    fit = fit_critical_batch_size(items)
    assert fit.outliers == []
    assert any(flag.startswith("misfit") for flag in fit.flags)
    wide = fit.critical_batch_size
    narrow = fit_critical_batch_size(observations(seeds=5, seed_sd=0.02)).critical_batch_size
    assert (wide.high or 0) / (wide.low or 1) > 1.5 * (narrow.high or 0) / (narrow.low or 1)


def test_right_censored_seeds_are_used_not_dropped() -> None:
    """Small batches hit the step cap: dropping censored seeds keeps the lucky ones and flattens the law."""
    cap = 1000.0
    full = observations(seeds=5, seed_sd=0.2)
    seen = [
        item
        if (item.steps or 0.0) <= cap
        else Observation(batch_size=item.batch_size, censored_at=cap, seed=item.seed)
        for item in full
    ]
    dropped = [item for item in seen if item.is_reached]
    assert 0 < len(full) - len(dropped) < 10
    truth = fit_critical_batch_size(full).critical_batch_size.value or 0.0
    kept = fit_critical_batch_size(seen).critical_batch_size.value or 0.0
    biased = fit_critical_batch_size(dropped).critical_batch_size.value or 0.0
    assert abs(math.log(kept / truth)) < 0.5 * abs(math.log(biased / truth))


def test_batch_that_never_reached_enters_as_an_inequality() -> None:
    """Without it perfect scaling fits as well; 'more than 3000 steps at B = 4' excludes small B_crit."""
    few = observations((64.0, 128.0, 256.0), seed_sd=0.1)
    bounded = [*few, *(Observation(batch_size=4.0, censored_at=3000.0, seed=s) for s in range(3))]
    low = fit_critical_batch_size(few).critical_batch_size.low or 0.0
    assert (fit_critical_batch_size(bounded).critical_batch_size.low or 0.0) > low


def test_upper_bound_far_above_the_law_changes_nothing_and_below_it_does() -> None:
    base = observations((8.0, 16.0, 32.0, 64.0))
    loose = Observation(batch_size=1024.0, steps=1000.0, is_upper_bound=True)
    tight = Observation(batch_size=1024.0, steps=90.0, is_upper_bound=True)
    reference = fit_critical_batch_size(base).critical_batch_size
    unmoved = fit_critical_batch_size([*base, loose]).critical_batch_size
    assert unmoved.value == pytest.approx(reference.value, rel=0.02)
    moved = fit_critical_batch_size([*base, tight])
    assert (moved.critical_batch_size.low or 0) > (reference.low or 0)


def test_evaluation_intervals_remove_the_bias_of_reading_them_late() -> None:
    """Read at the next of evaluations 500 examples apart, every crossing is 250 examples late."""
    generator = np.random.default_rng(0)
    late, intervals = [], []
    for batch in BATCHES:
        for seed in range(20):
            spacing = 500.0 / batch
            true = steps(batch, min_steps=20.0, critical=100.0) * math.exp(0.05 * generator.standard_normal())
            high = math.ceil(true / spacing) * spacing
            late.append(Observation(batch_size=batch, steps=high, seed=seed))
            intervals.append(Observation(batch_size=batch, low=high - spacing, high=high, seed=seed))
    naive = fit_critical_batch_size(late).min_examples.value or 0.0
    aware = fit_critical_batch_size(intervals).min_examples
    assert naive == pytest.approx(2250.0, rel=0.03)
    assert aware.value == pytest.approx(2000.0, rel=0.03)
    assert (aware.low or 0) < 2000.0 < (aware.high or 0)


def test_all_seeds_in_the_same_evaluation_do_not_make_certainty() -> None:
    items = [
        Observation(batch_size=batch, low=0.9 * steps(batch), high=1.1 * steps(batch), seed=seed)
        for batch in BATCHES
        for seed in range(5)
    ]
    estimate = fit_critical_batch_size(items).critical_batch_size
    assert (estimate.high or 0) / (estimate.low or 1) > 1.1


def test_several_rates_at_one_batch_are_refused() -> None:
    items = [
        Observation(batch_size=8, steps=100.0, learning_rate=0.1),
        Observation(batch_size=8, steps=90.0, learning_rate=0.2),
    ]
    with pytest.raises(ValueError, match=r"batch 8 comes with 0\.1 and 0\.2; choose one first"):
        fit_critical_batch_size(items)


def test_rate_choice_error_widens_the_interval() -> None:
    items = observations(seed_sd=0.02)
    sure = fit_critical_batch_size(items).critical_batch_size
    unsure = fit_critical_batch_size([replace(item, log_sd=0.05) for item in items]).critical_batch_size
    assert (unsure.high or 0) / (unsure.low or 1) > (sure.high or 0) / (sure.low or 1)


def test_band_contains_the_law_and_is_narrowest_inside_the_data() -> None:
    fit = fit_critical_batch_size(observations())
    widths = []
    for batch in (1.0, 64.0, 1e5):
        band = fit.steps_at(batch)
        assert (band.low or 0) <= steps(batch) <= (band.high or 0)
        widths.append((band.high or 0) / (band.low or 1))
    assert widths[1] == min(widths)


def test_small_sample_price_is_students_t_not_the_normal() -> None:
    """Single seeds at four batch sizes leave 2 degrees of freedom: t is 4.3, not 1.96."""
    items = [
        Observation(batch_size=batch, steps=steps(batch) * factor)
        for batch, factor in zip((8.0, 64.0, 512.0, 4096.0), (1.02, 0.97, 1.03, 0.98), strict=True)
    ]
    fit = fit_critical_batch_size(items)
    assert fit.spread is not None
    assert fit.spread.degrees_of_freedom == 2
    assert fit.spread.misfit_p_value is None
    log_batch = np.log([item.batch_size for item in items])
    slope = linregress(log_batch, np.log([item.steps or 0.0 for item in items])).slope
    assert -1.0 < slope < 0.0
    assert (fit.critical_batch_size.high or 0) / (fit.critical_batch_size.low or 1) > 1.2
