"""Does the 95 % interval of B_crit cover, and is it as narrow as it may be?

    python experiments/coverage.py [--studies 300] [--seed 0] [--only TEXT] [--json FILE] [--bootstrap 400]

Simulates studies with a planted critical batch size, fits each as `gasweep fit` would, and prints per
scenario the share of studies whose interval covers the truth, for B_crit, S_min and E_min (a one-sided answer
covers when the truth is on its side); the median width of two-sided intervals of B_crit (log high/low); its
ratio to the width of a profile likelihood of the same runs, told the true seed variance and nothing of the
error in the rates; and how often the answer was one-sided or absent. Scenarios marked * cannot identify the
truth (too little range): one-sided answers are right there.

With --bootstrap R, the scenarios with exact steps at known rates are also answered by a percentile bootstrap:
seeds drawn R times within each batch size, the law refitted to the means. Its coverage of B_crit and the
median ratio of its width to that of the profile likelihood are the last two columns.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gasweep.analysis.confidence_region import confidence_region
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.hyperbola import fit_hyperbola
from gasweep.analysis.likelihood import build_rows
from gasweep.analysis.likelihood_profile import Profile
from gasweep.analysis.simulated_study import Scenario, simulate
from gasweep.analysis.study import TargetReport, fit_study

CHI_SQUARED_95 = 3.841458820694124
REFERENCES = 300
"""Studies per scenario whose informed interval is computed: enough for the median width of all."""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """One scenario's result. one_sided, unknown: shares of answers without a value."""

    name: str
    studies: int
    coverage: float
    coverage_min_steps: float
    coverage_min_examples: float
    width_ratio: float
    median_width: float
    one_sided: float
    unknown: float
    ms_per_study: float
    bootstrap_coverage: float | None = None
    bootstrap_width: float | None = None

    @staticmethod
    def header() -> str:
        return (
            f"{'scenario':<58}{'B_crit':>7}{'S_min':>7}{'E_min':>7}{'width':>7}{'ratio':>7}{'1-sided':>9}"
            f"{'unknown':>9}{'ms':>5}"
        )

    def __str__(self) -> str:
        row = (
            f"{self.name:<58}{self.coverage:>7.3f}{self.coverage_min_steps:>7.3f}"
            f"{self.coverage_min_examples:>7.3f}{self.median_width:>7.3f}{self.width_ratio:>7.2f}"
            f"{self.one_sided:>9.3f}{self.unknown:>9.3f}{self.ms_per_study:>5.0f}"
        )
        if self.bootstrap_coverage is None or self.bootstrap_width is None:
            return row
        return f"{row}  bootstrap {self.bootstrap_coverage:.3f}, width {self.bootstrap_width:.2f}"


def scenarios() -> Iterator[tuple[Scenario, bool]]:
    """Each scenario, and whether the truth is identifiable in it."""
    for seeds in (2, 3, 5, 10):
        for batches in (4, 6, 10):
            yield (
                Scenario(
                    name=f"plain, {batches} batches, {seeds} seeds", num_batches=batches, num_seeds=seeds
                ),
                True,
            )
        base = Scenario(name="", num_seeds=seeds)
        kinds: dict[str, dict[str, Any]] = {
            "noisy seeds (15 %)": {"seed_sd": 0.15, "num_batches": 8},
            "quiet seeds (1 %)": {"seed_sd": 0.01},
            "evaluated every 5 %, interpolated": {"evaluation": "interpolated"},
            "evaluated every 5 %, interval only": {"evaluation": "interval"},
            "evaluated every 10 %, interval only, quiet": {
                "evaluation": "interval", "spacing": 0.1, "seed_sd": 0.02,
            },
            "evaluated every S_min/10, interpolated": {"evaluation": "fixed", "spacing": 0.1},
            "small batches censored": {"max_steps_over_min": 11.0, "seed_sd": 0.1, "num_batches": 7},
            "5 rates, factor 2": {"learning_rates": 5},
            "5 rates, factor 3": {"learning_rates": 5, "rate_ratio": 3.0},
            "4 rates, factor 2, some diverge": {"learning_rates": 4, "diverges_above": 1.5},
            "5 rates, factor 2, flat curve, noisy": {"learning_rates": 5, "curvature": 0.05, "seed_sd": 0.1},
            "4 rates, factor 2, one grid for all": {"learning_rates": 4, "shared_grid": True},
            "5 rates, factor 2, one-curvature law": {"learning_rates": 5, "rate_curve": "quadratic"},
            "seed spread 3 times larger at small batches": {"spread_ratio": 3.0},
            "5 rates, censored, interpolated": {
                "learning_rates": 5, "evaluation": "interpolated", "max_steps_over_min": 16.0,
                "num_batches": 8,
            },
            "outlier seeds (2 %)": {"outlier_chance": 0.02, "num_batches": 8},
            "batches off the law by 5 %": {"between_sd": 0.05, "num_batches": 8},
            "smallest batches never reach": {"max_steps_over_min": 9.0, "num_batches": 8},
            "seeds half in common over batches": {"seed_correlation": 0.5},
            "seeds nine tenths in common over batches": {"seed_correlation": 0.9},
        }  # fmt: skip
        for name, changes in kinds.items():
            yield replace(base, name=f"{name}, {seeds} seeds", **changes), True
        yield (
            replace(base, name=f"all batches far below *, {seeds} seeds", range_below=512, range_above=0.05),
            False,
        )
        yield (
            replace(base, name=f"all batches far above *, {seeds} seeds", range_below=0.02, range_above=512),
            False,
        )


def reference_width(report: TargetReport, scenario: Scenario) -> float | None:
    """Width of the profile-likelihood interval of the same runs at the true seed variance."""
    seeds = [
        replace(item, is_upper_bound=batch.choice.is_upper_bound)
        for batch in report.batches
        if batch.choice.winner is not None
        for item in batch.choice.winner.observations
        if item not in [outlier.observation for outlier in report.fit.outliers]
    ]
    rows = build_rows(seeds)
    index = [int(np.argmin(np.abs(np.log(scenario.batch_sizes) - value))) for value in rows.log_batch]
    spread = np.array([scenario.seed_spread(one) for one in index])[rows.group] / scenario.seed_sd
    rows = replace(rows, scale=spread**2, shared=rows.shared + scenario.between_sd**2)
    profile = Profile(rows=rows, sigma=scenario.seed_sd, reference=float(rows.log_batch.mean()))
    region = confidence_region(profile, CHI_SQUARED_95)
    width = region.theta_high - region.theta_low
    return width if math.isfinite(width) else None


def bootstrap_interval(
    report: TargetReport, *, resamples: int, generator: np.random.Generator
) -> tuple[float, float]:
    """log B_crit at 2.5 % and 97.5 % of refits to resampled seeds; infinite where resamples have no bend."""
    groups = [
        np.log([item.steps or math.nan for item in batch.choice.winner.observations])
        for batch in report.batches
        if batch.choice.winner is not None
    ]
    log_batch = np.log([batch.batch_size for batch in report.batches if batch.choice.winner is not None])
    weight = np.array([1.0 / len(group) for group in groups])
    drawn = [
        group[generator.integers(len(group), size=(resamples, len(group)))].mean(axis=1) for group in groups
    ]
    theta = np.sort([fit_hyperbola(log_batch, means, weight).theta for means in np.array(drawn).T])
    return float(theta[round(0.025 * (resamples - 1))]), float(theta[round(0.975 * (resamples - 1))])


def covers(estimate: Estimate, truth: float) -> bool:
    return (estimate.low is None or estimate.low <= truth) and (
        estimate.high is None or truth <= estimate.high
    )


def measure(scenario: Scenario, studies: int, seed: int, resamples: int = 0) -> Tally:
    generator = np.random.default_rng(seed)
    resampler = np.random.default_rng([seed, 1])
    bootstrapped: list[tuple[float, float]] = []
    covered = covered_steps = covered_examples = one_sided = unknown = 0
    widths, references = [], []
    spent = 0.0
    for _ in range(studies):
        study = simulate(scenario, generator)
        start = time.process_time()
        report = fit_study(study.runs, study.targets).targets[0]
        spent += time.process_time() - start
        if resamples and scenario.evaluation == "exact" and scenario.learning_rates == 1:
            bootstrapped.append(bootstrap_interval(report, resamples=resamples, generator=resampler))
        reference = reference_width(report, scenario) if len(references) < REFERENCES else None
        estimate = report.fit.critical_batch_size
        covered += covers(estimate, study.critical_batch_size)
        covered_steps += covers(report.fit.min_steps, study.min_steps)
        covered_examples += covers(report.fit.min_examples, study.min_examples)
        if estimate.low is None and estimate.high is None:
            unknown += 1
        elif estimate.low is None or estimate.high is None:
            one_sided += 1
        else:
            widths.append(math.log(estimate.high / estimate.low))
        if reference is not None:
            references.append(reference)
    width = float(np.median(widths)) if widths else math.nan
    reference_median = float(np.median(references)) if references else math.nan
    bootstrap_coverage, bootstrap_width = _bootstrap_columns(
        bootstrapped, math.log(scenario.critical_batch_size), width
    )
    return Tally(
        name=scenario.name,
        studies=studies,
        coverage=covered / studies,
        coverage_min_steps=covered_steps / studies,
        coverage_min_examples=covered_examples / studies,
        width_ratio=width / reference_median,
        median_width=width,
        one_sided=one_sided / studies,
        unknown=unknown / studies,
        ms_per_study=1e3 * spent / studies,
        bootstrap_coverage=bootstrap_coverage,
        bootstrap_width=bootstrap_width,
    )


def _bootstrap_columns(
    intervals: Sequence[tuple[float, float]], truth: float, width: float
) -> tuple[float | None, float | None]:
    """Coverage, and the median width over `width`, that of the profile likelihood in the same studies."""
    if not intervals:
        return None, None
    covered = sum(low <= truth <= high for low, high in intervals) / len(intervals)
    widths = [high - low for low, high in intervals]
    return covered, float(np.median(widths)) / width


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=300, help="simulated studies per scenario")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="scenarios whose name holds this; may be repeated"
    )
    parser.add_argument("--json", default=None, help="also write the table to this file")
    parser.add_argument("--bootstrap", type=int, default=0, metavar="R", help="resamples per study")
    options = parser.parse_args()
    texts = options.only or [""]
    chosen = [scenario for scenario, _ in scenarios() if any(text in scenario.name for text in texts)]
    tallies = []
    print(Tally.header())
    with ProcessPoolExecutor(options.processes) as pool:
        count = len(chosen)
        work = pool.map(
            measure,
            chosen,
            [options.studies] * count,
            [options.seed] * count,
            [options.bootstrap] * count,
        )
        for tally in work:
            tallies.append(tally)
            print(tally, flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([asdict(tally) for tally in tallies], file, indent=1)


if __name__ == "__main__":
    main()
