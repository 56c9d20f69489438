import itertools

import numpy as np
import pytest

from gasweep.analysis.step_time import ProbePoint, StepCost, fit_step_time, fraction_saved

BATCHES, WORLDS, STEPS = (8, 32, 128), (1, 2, 4), (1, 2, 4, 16)


def truth(b, n, g):
    sync = 0.0 if n == 1 else 0.004 + 0.02 * (n - 1) / n
    return 0.002 + g * (0.001 + 1e-4 * b) + sync


def point(b, n, g, noise=0.0, rng=None):
    factor = 1.0 if rng is None else float(np.exp(noise * rng.standard_normal()))
    return ProbePoint(
        micro_batch_size=b,
        world_size=n,
        accumulation_steps=g,
        effective_batch_size=b * n * g,
        seconds=truth(b, n, g) * factor,
    )


GRID = list(itertools.product(BATCHES, WORLDS, STEPS))


def test_exact_data_is_predicted_exactly():
    model = fit_step_time([point(*p) for p in GRID[::2]])
    for b, n, g in GRID:
        assert model.predict(point(b, n, g)).value == pytest.approx(truth(b, n, g), rel=1e-6)


def test_held_out_points_fall_inside_their_intervals():
    rng = np.random.default_rng(0)
    inside = total = 0
    for _ in range(60):
        order = rng.permutation(len(GRID))
        probed, held_out = order[:14], order[14:]
        model = fit_step_time([point(*GRID[i], noise=0.03, rng=rng) for i in probed])
        for i in held_out:
            estimate = model.predict(point(*GRID[i]))
            if estimate.value is not None:
                measured = point(*GRID[i], noise=0.03, rng=rng).seconds
                inside += estimate.low <= measured <= estimate.high
                total += 1
    assert total > 1000
    assert inside / total >= 0.93


def test_what_was_not_probed_is_not_guessed():
    model = fit_step_time([point(b, 1, g) for b, g in itertools.product((8, 32), STEPS)])
    assert "world_size=2 was not probed" in model.predict(point(8, 2, 1)).reason
    assert "outside the probed 8..32" in model.predict(point(128, 1, 1)).reason


def test_too_few_probes_give_no_model():
    assert fit_step_time([point(*p) for p in GRID[:3]]) is None


def test_the_interval_of_what_is_saved_covers_the_truth() -> None:
    """Planted: 40 % saved, single steps scatter by 20 %, a mean of 30 on either side."""
    rng = np.random.default_rng(7)
    inside, trials = 0, 600
    for _ in range(trials):
        sides = [_measured(rng.normal(mean, 0.2 * mean, 30)) for mean in (0.06, 0.1)]
        found = fraction_saved(*sides)
        inside += found.low <= 0.4 <= found.high
    assert 0.92 <= inside / trials <= 0.98


def _measured(steps: np.ndarray) -> StepCost:
    means = [block.mean() for block in np.array_split(steps, 10)]
    return StepCost(
        mean=float(steps.mean()),
        standard_error=float(np.std(means, ddof=1) / np.sqrt(10)),
        degrees_of_freedom=9,
    )


def test_without_a_standard_error_there_is_no_interval() -> None:
    exact = StepCost(mean=1.0, standard_error=0.1, degrees_of_freedom=9)
    for unsure in (
        StepCost(mean=2.0, standard_error=None, degrees_of_freedom=9),
        StepCost(mean=2.0, standard_error=0.1, degrees_of_freedom=-1),
    ):
        found = fraction_saved(exact, unsure)
        assert (found.value, found.low, found.high) == (0.5, None, None)
