"""The last words of `gasweep run`: how its runs ended, and how steps scatter."""

from __future__ import annotations

from pathlib import Path

import pytest

from gasweep.cli.answer import spread_lines
from gasweep.cli.driving import tally_lines
from gasweep.config import parse_sweep_config, plan_sweep
from gasweep.results.spread import Spread
from gasweep.results.states import RunState
from gasweep.scheduling.sweep import SweepOutcome


def test_probes_are_not_counted_as_runs_that_reached() -> None:
    config = {
        "task": {"_target_": "gasweep.tasks.Digits"},
        "grid": {
            "micro_batch_size": [8],
            "accumulation_steps": [1, 2],
            "learning_rate": [0.1],
            "seed": [0, 1],
        },
        "target": {"value": 0.5},
        "budget": {"max_optimizer_steps": 9},
    }
    plan = plan_sweep(parse_sweep_config(config))
    states = {spec.run_id: RunState.REACHED for spec in [*plan.probes, *plan.runs]}
    states[plan.runs[0].run_id] = RunState.CENSORED
    outcome = SweepOutcome(exit_code=0, states=states, plan=plan, directory=Path("s"))
    assert tally_lines(outcome) == ["runs: 3 reached, 1 censored", "probes: 2 measured"]
    assert outcome.counts["reached"] == 5


@pytest.mark.parametrize(
    ("factorisations", "said"),
    [(1.3e-8, "< 0.001 %"), (0.0, "0 %"), (0.012, "1.2 %"), (None, "not measured")],
)
def test_scatter_by_rounding_alone_is_no_long_number(factorisations: float | None, said: str) -> None:
    spread = Spread(
        target="t", axes={}, factorisations=factorisations, num_layout_groups=4, seeds=0.05, num_seed_groups=3
    )
    _, over_factorisations, over_seeds, _ = spread_lines(spread)
    assert over_factorisations.split("factorisations")[1].strip().startswith(said)
    assert "5 % (3 groups)" in over_seeds
