"""Does the noise scale's 95 % interval cover, is it as narrow as it may be, and when is it one-sided?

    python experiments/noise_coverage.py [--runs 1000] [--seed 0] [--only TEXT] [--json FILE]

Draws |G|² and tr Σ per step for gradients with a planted mean and covariance of `dimension` equal directions
(exactly, from their chi-square laws; heavy tails from per-example draws), forms the window's Fieller set for
several numbers of blocks, with the variance of the block means taken from neighbouring differences (what
gasweep does with 16 blocks) or about their mean. The truth is the window's ratio of means, Σ tr Σ / Σ |G|².

Columns: coverage in %, then share of two-sided sets in % and their median width relative to the truth.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from gasweep.analysis.noise_scale_fieller import FiellerSet, fieller_set

Array = np.ndarray[Any, Any]
BLOCKS = (8, 16, 32, 10**6)


@dataclass(frozen=True, kw_only=True)
class Case:
    """trace, sq_norm: [num_steps], the truth. m groups of b examples; tails: per-example radial law."""

    name: str
    trace: Array
    sq_norm: Array
    m: int = 4
    b: int = 8
    dimension: int = 100
    tails: str = "normal"
    memory: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Row:
    case: str
    variance: str
    blocks: int
    coverage: float
    two_sided: float
    median_width: float | None


def cases() -> list[Case]:
    def flat(name: str, steps: int, scale: float, **kwargs: Any) -> Case:
        return Case(name=name, trace=np.full(steps, scale), sq_norm=np.ones(steps), **kwargs)

    def drift(name: str, steps: int, scale: float, fall: float, **kwargs: Any) -> Case:
        sq_norm = np.geomspace(1.0, 1.0 / fall, steps)
        return Case(name=name, trace=scale * np.geomspace(1.0, 0.5, steps), sq_norm=sq_norm, **kwargs)

    found = [flat("hard: scale 1e4, 400 steps", 400, 1e4)]
    found += [flat(f"scale {s:g}, 400 steps", 400, s) for s in (1, 30, 300, 1000)]
    found += [flat(f"scale 20, {n} steps", n, 20) for n in (8, 16, 32, 64)]
    found += [
        flat(f"scale 20, 100 steps, m={m}, b={b}", 100, 20, m=m, b=b) for m, b in ((2, 1), (2, 64), (64, 1))
    ]
    found += [flat(f"dimension {d}, scale 20, 100 steps", 100, 20, dimension=d) for d in (1, 2, 10)]
    found += [drift(f"|G|² falls {f}-fold, 400 steps", 400, 100, f) for f in (10, 100)]
    found += [drift("|G|² falls 100-fold, 64 steps", 64, 50, 100)]
    found += [drift("|G|² falls 100-fold, 400 steps, scale 1000", 400, 1000, 100)]
    found += [
        flat(f"{t} tails, scale 50, 100 steps", 100, 50, dimension=20, tails=t) for t in ("t3", "lognormal")
    ]
    found += [flat("noise remembers half of the step before", 400, 30, memory=0.5)]
    return found


def draw(case: Case, rng: np.random.Generator) -> tuple[Array, Array]:
    """(tr Σ, |G|²) estimates of each step."""
    if case.tails != "normal":
        return _draw_examples(case, rng)
    n, steps, d = case.m * case.b, len(case.trace), case.dimension
    freedom = d * (case.m - 1)
    trace = case.trace * rng.chisquare(freedom, steps) / freedom
    normal = rng.standard_normal(steps)
    for t in range(1, steps if case.memory else 0):
        normal[t] = case.memory * normal[t - 1] + math.sqrt(1.0 - case.memory**2) * normal[t]
    along = np.sqrt(case.sq_norm) + np.sqrt(case.trace / (n * d)) * normal
    across = case.trace / (n * d) * rng.chisquare(d - 1, steps) if d > 1 else np.zeros(steps)
    return trace, along**2 + across - trace / n


def _draw_examples(case: Case, rng: np.random.Generator) -> tuple[Array, Array]:
    steps, shape = len(case.trace), (case.m, case.b, 1)
    trace, sq_norm = np.empty(steps), np.empty(steps)
    for t in range(steps):
        if case.tails == "t3":
            radius = 1.0 / np.sqrt(rng.chisquare(3, shape))
        else:
            radius = np.exp(rng.standard_normal(shape) - 1.0)
        noise = rng.standard_normal((case.m, case.b, case.dimension)) * radius
        gradient = noise * math.sqrt(case.trace[t] / case.dimension)
        gradient[..., 0] += math.sqrt(case.sq_norm[t])
        means = gradient.mean(axis=1)
        mean = means.mean(axis=0)
        trace[t] = case.b * ((means - mean) ** 2).sum() / (case.m - 1)
        sq_norm[t] = mean @ mean - trace[t] / (case.m * case.b)
    return trace, sq_norm


def about_the_mean(x: Array, y: Array, *, num_blocks: int) -> FiellerSet:
    """The same set with the blocks' variance about their mean, for comparison."""
    edges = np.round(np.linspace(0, len(x), min(num_blocks, len(x)) + 1)).astype(int)
    blocks = np.add.reduceat(np.array([x, y]), edges[:-1], axis=1) / np.diff(edges)
    count = blocks.shape[1]
    mean = blocks.mean(axis=1)
    covariance = np.cov(blocks) / count
    t2 = float(stats.t.ppf(0.975, count - 1)) ** 2
    a, b, c = (
        mean[1] ** 2 - t2 * covariance[1, 1],
        mean[0] * mean[1] - t2 * covariance[0, 1],
        mean[0] ** 2 - t2 * covariance[0, 0],
    )
    root = math.sqrt(max(b * b - a * c, 0.0))
    if a > 0:
        return FiellerSet(shape="interval", low=max((b - root) / a, 0.0), high=max((b + root) / a, 0.0))
    return FiellerSet(shape="at_least", low=c / (b + root)) if c > 0 else FiellerSet(shape="anything")


def differences(x: Array, y: Array, *, num_blocks: int) -> FiellerSet:
    return fieller_set(list(x), list(y), num_blocks=num_blocks)


def covers(found: FiellerSet, truth: float) -> bool:
    if found.shape == "negative":
        return False
    return (found.low is None or found.low <= truth) and (found.high is None or truth <= found.high)


def run_case(case: Case, *, runs: int, rng: np.random.Generator) -> list[Row]:
    truth = float(case.trace.sum() / case.sq_norm.sum())
    draws = [draw(case, rng) for _ in range(runs)]
    methods: dict[str, Callable[..., FiellerSet]] = {
        "differences": differences,
        "about the mean": about_the_mean,
    }
    rows = []
    for name, method in methods.items():
        for blocks in BLOCKS:
            sets = [method(x, y, num_blocks=blocks) for x, y in draws]
            widths = [s.high - s.low for s in sets if s.shape == "interval" and s.high and s.low is not None]
            rows.append(
                Row(
                    case=case.name,
                    variance=name,
                    blocks=min(blocks, len(case.trace)),
                    coverage=float(np.mean([covers(s, truth) for s in sets])),
                    two_sided=len(widths) / runs,
                    median_width=float(np.median(widths)) / truth if widths else None,
                )
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cases whose name holds TEXT")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    everything = []
    for case in cases():
        if arguments.only not in case.name:
            continue
        rows = run_case(case, runs=arguments.runs, rng=rng)
        everything += rows
        print(case.name)
        for row in rows:
            width = "" if row.median_width is None else f"{row.median_width:6.2f}"
            print(
                f"  {row.variance:15s} {row.blocks:4d} blocks  {100 * row.coverage:5.1f} %"
                f"   two-sided {100 * row.two_sided:5.1f} %  width {width}",
                flush=True,
            )
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in everything], file, indent=1)


if __name__ == "__main__":
    main()
