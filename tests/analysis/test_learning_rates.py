"""One learning rate per batch size: which wins, its label, and what a finer grid would have saved."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gasweep.analysis.learning_rate_choice import Bracket, RateTrial, choose_learning_rate, mean_log_steps
from gasweep.analysis.learning_rate_curve import RateNeighbourhood, RatePoint, rate_shifts
from gasweep.analysis.observation import Observation


def trial(
    rate: float, *steps: float | None, diverged: int = 0, seeds: tuple[int, ...] | None = None
) -> RateTrial:
    """`None` in `steps`: stopped at 200 without the target."""
    names = seeds or tuple(range(len(steps)))
    return RateTrial(
        learning_rate=rate,
        observations=tuple(
            Observation(
                batch_size=8, steps=one, censored_at=None if one else 200.0, learning_rate=rate, seed=seed
            )
            for one, seed in zip(steps, names, strict=True)
        ),
        num_diverged=diverged,
    )


def test_c06_winner_at_the_upper_edge_is_marked_and_the_next_rate_proposed() -> None:
    """C06: lr 1e-4, 3e-4, 1e-3 -> steps 400, 250, 180: the winner is not bracketed; try 3e-3."""
    choice = choose_learning_rate([trial(1e-4, 400.0), trial(3e-4, 250.0), trial(1e-3, 180.0)], seed_sd=0.05)
    assert choice.winner is not None
    assert choice.winner.learning_rate == 1e-3
    assert (choice.bracket, choice.propose, choice.is_upper_bound) == (Bracket.EDGE, 3e-3, True)


def test_c06_winner_at_the_lower_edge() -> None:
    choice = choose_learning_rate([trial(1e-4, 180.0), trial(3e-4, 250.0), trial(1e-3, 400.0)], seed_sd=0.05)
    assert (choice.bracket, choice.propose) == (Bracket.EDGE, 3e-5)


def test_c06_exact_tie_with_the_edge_is_not_bracketed() -> None:
    choice = choose_learning_rate([trial(1e-4, 400.0), trial(3e-4, 180.0), trial(1e-3, 180.0)], seed_sd=0.05)
    assert (choice.bracket, choice.propose, choice.is_upper_bound) == (Bracket.TIE, 3e-3, True)
    assert choice.tied_with == (1e-3,)


def test_tie_inside_the_grid_is_bracketed_by_it() -> None:
    trials = [trial(0.01, 300.0), trial(0.03, 180.0), trial(0.1, 181.0), trial(0.3, 300.0)]
    choice = choose_learning_rate(trials, seed_sd=0.05)
    assert (choice.bracket, choice.is_upper_bound, choice.propose) == (Bracket.TIE, False, None)


def test_edge_within_the_noise_is_proposed_but_the_winner_counts() -> None:
    choice = choose_learning_rate([trial(0.01, 300.0), trial(0.03, 180.0), trial(0.1, 182.0)], seed_sd=0.05)
    assert (choice.bracket, choice.is_upper_bound, choice.propose) == (Bracket.TIE, False, 0.3)


def test_c06_winner_next_to_divergence_is_bounded_by_it() -> None:
    choice = choose_learning_rate(
        [trial(0.1, 250.0), trial(0.3, 180.0), trial(1.0, diverged=1)], seed_sd=0.05
    )
    assert (choice.bracket, choice.is_upper_bound) == (Bracket.BOUNDED_BY_DIVERGENCE, False)


def test_a_rate_that_diverged_in_one_seed_is_not_the_best() -> None:
    choice = choose_learning_rate([trial(0.1, 250.0, 240.0), trial(0.3, 180.0, diverged=1)], seed_sd=0.05)
    assert choice.winner is not None
    assert choice.winner.learning_rate == 0.1


def test_lowest_rate_below_divergence_is_still_an_edge() -> None:
    choice = choose_learning_rate([trial(0.1, 250.0), trial(0.3, diverged=1)], seed_sd=0.05)
    assert (choice.bracket, choice.is_upper_bound) == (Bracket.EDGE, True)


def test_rate_is_chosen_by_the_mean_over_seeds_not_per_seed() -> None:
    """Per-seed minima would be 90 and 90; no rate achieves that."""
    trials = [trial(0.1, 90.0, 130.0), trial(0.2, 105.0, 105.0), trial(0.4, 130.0, 90.0)]
    choice = choose_learning_rate(trials, seed_sd=0.05)
    assert choice.winner is not None
    assert choice.winner.learning_rate == 0.2


def test_missing_seeds_do_not_let_a_rate_win_by_luck() -> None:
    """Seed 2 is slow everywhere and was not run at 0.3; over the shared seeds 0.1 is faster."""
    trials = [
        trial(0.1, 100.0, 110.0, 200.0),
        trial(0.3, 105.0, 115.0, seeds=(0, 1)),
        trial(0.9, 300.0, 330.0, 600.0),
    ]
    assert np.mean(np.log([100.0, 110.0, 200.0])) > np.mean(np.log([105.0, 115.0]))
    means = mean_log_steps(trials, seed_sd=0.05)
    assert means[0] < means[1] < means[2]


def test_seeds_without_names_are_compared_by_plain_means() -> None:
    first = replace(trial(0.1, 100.0), observations=(Observation(batch_size=8, steps=100.0),))
    assert mean_log_steps([first], seed_sd=0.05) == [math.log(100.0)]


def test_rates_that_share_no_seed_are_compared_by_plain_means() -> None:
    trials = [trial(0.1, 100.0, seeds=(0,)), trial(0.2, 90.0, seeds=(1,))]
    assert mean_log_steps(trials, seed_sd=0.05) == pytest.approx([math.log(100.0), math.log(90.0)])


def test_censored_seed_counts_as_longer_than_it_ran() -> None:
    """Mean over reached only is 110 and would beat 130; the seed stopped at 200 makes it longer."""
    choice = choose_learning_rate(
        [trial(0.1, 100.0, 120.0, None), trial(0.2, 130.0, 130.0, 130.0)], seed_sd=0.05
    )
    assert choice.winner is not None
    assert choice.winner.learning_rate == 0.2


def test_no_rate_reached_has_no_winner() -> None:
    choice = choose_learning_rate([trial(0.1, None), trial(0.2, None)], seed_sd=0.05)
    assert (choice.winner, choice.bracket) == (None, Bracket.NONE)


def test_one_given_rate_is_taken_as_chosen() -> None:
    assert choose_learning_rate([trial(0.1, 100.0)], seed_sd=0.05).bracket is Bracket.ONLY


def test_variants_are_alternatives_not_a_scan() -> None:
    variants = [
        RateTrial(learning_rate=None, variant=name, observations=(Observation(batch_size=8, steps=steps),))
        for name, steps in (("a", 100.0), ("b", 90.0))
    ]
    choice = choose_learning_rate(variants, seed_sd=0.05)
    assert choice.winner is variants[1]
    assert (choice.bracket, choice.is_upper_bound) == (Bracket.BEST_GIVEN, False)


def around(
    place: float, excess: object, *, step: float = math.log(2.0), limit: float | None = None
) -> RateNeighbourhood:
    """Means at -step, 0, step when the best rate is at `place`."""
    points = [
        RatePoint(log_rate=x, mean=5.0 + excess(x - place), num_seeds=3)  # type: ignore[operator]
        for x in (-step, 0.0, step)
    ]
    return RateNeighbourhood(
        winner=points[1], below=points[0], above=None if limit is not None else points[2], limit=limit
    )


@pytest.mark.parametrize("place", [-0.3, 0.0, 0.3])
def test_parabola_is_recovered(place: float) -> None:
    neighbourhoods = {float(k): around(place, lambda x: 0.5 * x**2) for k in range(4)}
    shift = rate_shifts(neighbourhoods, seed_sd=0.01)[0.0]
    assert shift.log_shift == pytest.approx(-0.5 * place**2, abs=0.01)
    assert shift.log_sd < 0.02


@pytest.mark.parametrize("place", [-0.3, -0.1, 0.0, 0.3])
def test_one_curvature_law_is_recovered(place: float) -> None:
    """S ~ 1 / (r (2 - r)): at log r = -place the winner's excess is -log(r (2 - r))."""

    def excess(x: float) -> float:
        return -math.log(math.exp(x) * (2.0 - math.exp(x)))

    neighbourhoods = {
        float(k): around(p, excess, step=math.log(1.35)) for k, p in enumerate((place, -0.2, 0.1, 0.25))
    }
    shift = rate_shifts(neighbourhoods, seed_sd=0.01)[0.0]
    assert shift.log_shift == pytest.approx(-excess(-place), abs=0.015)


def test_divergence_above_limits_where_the_best_rate_may_be() -> None:
    neighbourhoods = {float(k): around(0.1, lambda x: 0.5 * x**2, limit=0.3) for k in range(3)}
    neighbourhoods[9.0] = around(0.1, lambda x: 0.5 * x**2)
    shift = rate_shifts(neighbourhoods, seed_sd=0.01)[0.0]
    assert shift.log_shift == pytest.approx(-0.005, abs=0.02)


def test_no_neighbourhood_no_shift() -> None:
    assert rate_shifts({}, seed_sd=0.05) == {}
