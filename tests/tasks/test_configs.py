"""The shipped configs: each loads, plans, and names a task that exists and a metric it has."""

from pathlib import Path

import pytest

from gasweep.config.load import load_sweep_config
from gasweep.config.plan import plan_sweep
from gasweep.tasks import SHIPPED_TASKS
from gasweep.tasks.resolve import resolve_task

CONFIGS = sorted((Path(__file__).parent.parent.parent / "configs").glob("*.yaml"))


def shipped(name):
    return load_sweep_config(next(path for path in CONFIGS if path.stem == name))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_plans_and_resolves(path):
    config = load_sweep_config(path)
    assert config.name == path.stem
    plan = plan_sweep(config)
    assert not plan.rejected
    assert len(plan.runs) < len(plan.points)
    assert config.target.metric in resolve_task(config.task).metrics()


def test_every_shipped_task_has_a_config():
    targets = {load_sweep_config(path).task["_target_"] for path in CONFIGS}
    assert targets == {f"gasweep.tasks.{name}" for name in SHIPPED_TASKS}


def test_the_quickstart_is_as_large_as_promised():
    config = shipped("quickstart")
    axes = ("micro_batch_size", "world_size", "accumulation_steps", "learning_rate_multiplier", "seed")
    sizes = [len(config.grid[axis]) for axis in axes]
    assert all(size >= least for size, least in zip(sizes, (3, 2, 3, 4, 3), strict=True))
    plan = plan_sweep(config)
    assert (len(plan.points), len(plan.runs), len(plan.probes)) == (216, 96, 18)
    batches = sorted({run.effective_batch_size for run in plan.runs})
    assert batches == [8, 16, 32, 64, 128, 256, 512, 1024]


def test_no_budget_ends_a_quickstart_run_before_its_expected_end():
    """Measured at the best rate: 1,600 steps at B=8, 130 at B=1024 (experiments/quickstart_scan.py)."""
    budget = shipped("quickstart").budget
    assert budget.max_optimizer_steps > 1.5 * 1600
    assert budget.max_examples > 1.5 * 130 * 1024
