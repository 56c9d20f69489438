import math
import subprocess
import sys

import pytest

from gasweep.config import Layout, RunSpec, parse_sweep_config, plan_sweep
from gasweep.errors import ConfigError


def plan(base, *overrides):
    return plan_sweep(parse_sweep_config(base, overrides))


def test_the_grid_collapses_to_one_run_per_batch_rate_and_seed(base):
    result = plan(base)
    batches = {p.effective_batch_size for p in result.points}
    assert batches == {8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096}
    assert len(result.points) == 3 * 2 * 3 * 4 * 3
    assert len(result.runs) == len(batches) * 4 * 3
    assert len(result.probes) == 3 * 2 * 3
    assert {p.run_id for p in result.points} == {r.run_id for r in result.runs}


def test_points_of_one_batch_rate_and_seed_share_a_run(base):
    owners = {}
    for p in plan(base).points:
        owners.setdefault((p.effective_batch_size, p.learning_rate, p.seed), set()).add(p.run_id)
    assert all(len(ids) == 1 for ids in owners.values())


def test_full_mode_runs_every_point(base):
    result = plan(base, "sweep.mode=full")
    assert len(result.runs) == len(result.points) == 216


def test_c34_every_point_is_distinct_and_free_of_grid_markers(base):
    base["grid"] = {
        "micro_batch_size": [8, 16],
        "learning_rate": [0.1, 0.2],
        "task": {"width": [4, 8]},
        "seed": [0, 1],
    }
    result = plan(base)
    assert len(result.runs) == 16
    assert all(r.config.grid == {} for r in result.runs)
    assert {(r.config.task["width"], r.axes["task.width"]) for r in result.runs} == {(4, 4), (8, 8)}
    result.runs[0].config.task["width"] = 99
    assert [r.config.task["width"] for r in result.runs].count(99) <= len(result.runs) // 2


def test_c34_constrained_products_list_what_was_rejected(base):
    del base["grid"]["accumulation_steps"]
    result = plan(base, "grid.effective_batch_size=[96]", "grid.micro_batch_size=[8,32,64]")
    assert [p.layout.accumulation_steps for p in result.points[:: 4 * 3]] == [12, 6, 3]
    assert [r.point["micro_batch_size"] for r in result.rejected] == [32, 64, 64]
    assert "not a multiple of micro_batch_size*world_size=32*2=64" in result.rejected[0].reason


def test_incomplete_groups_keep_b_as_asked(base):
    del base["grid"]["accumulation_steps"]
    result = plan(
        base,
        "grid.effective_batch_size=[1000]",
        "grid.micro_batch_size=[48]",
        "grid.world_size=[7]",
        "sweep.incomplete_groups=true",
    )
    assert {(p.effective_batch_size, p.layout.accumulation_steps) for p in result.points} == {(1000, 3)}


def test_smaller_batch_than_world_is_named(base):
    del base["grid"]["accumulation_steps"]
    with pytest.raises(ConfigError, match="effective_batch_size=1 is smaller than world_size=2"):
        plan(base, "grid.effective_batch_size=[1]", "grid.world_size=[2]", "grid.micro_batch_size=[1]")


def test_single_strategy_rejects_more_ranks(base):
    result = plan(base, "strategy=single")
    assert {p.layout.world_size for p in result.points} == {1}
    assert "strategy='single'" in result.rejected[0].reason


def test_c33_ids_depend_on_what_determines_the_result_and_nothing_else(base):
    def ids(*overrides):
        return [r.run_id for r in plan(base, *overrides).runs]

    reference = ids()
    same = ["name=other", "budget.max_examples=5000", "cluster.threads_per_worker=2", "strategy=fsdp"]
    for override in (*same, "checkpoint.every_s=1", "tracking.wandb.mode=offline", "sweep.max_retries=3"):
        assert ids(override) == reference, override
    for override in (
        "task.hidden=65",
        "optimizer.momentum=0.5",
        "schedule.warmup_optimizer_steps=1",
        "data.seed=1",
        "data.sampling=replacement",
        "precision=bf16",
        "target.value=0.4",
        "target.rule=stays_below",
        "evaluation.spacing_fraction=0.1",
        "budget.divergence_factor=3",
    ):
        assert not set(ids(override)) & set(reference), override


def test_c33_one_more_rate_adds_only_its_runs(base):
    before = {r.run_id for r in plan(base).runs}
    after = {r.run_id for r in plan(base, "grid.learning_rate=[0.03,0.1,0.3,1.0,3.0]").runs}
    assert before < after
    assert len(after - before) == 10 * 3


def test_ids_are_the_same_in_another_process(base):
    code = (
        "import sys, json; from gasweep.config import *;"
        "plan = plan_sweep(parse_sweep_config(json.loads(sys.argv[1])));"
        "print(plan.runs[0].run_id, plan.runs[-1].run_id)"
    )
    import json

    out = subprocess.run(
        [sys.executable, "-c", code, json.dumps(base)], check=True, capture_output=True, text=True
    )
    runs = plan(base).runs
    assert out.stdout.split() == [runs[0].run_id, runs[-1].run_id]


def test_the_execution_layout_takes_fewest_micro_batches_then_fewest_ranks(base):
    layouts = {r.effective_batch_size: str(r.layout) for r in plan(base).runs}
    assert layouts == {
        8: "8x1x1",
        16: "8x2x1",
        32: "32x1x1",
        64: "32x2x1",
        128: "128x1x1",
        256: "128x2x1",
        512: "128x1x4",
        1024: "128x2x4",
        2048: "128x1x16",
        4096: "128x2x16",
    }


def test_on_a_small_cluster_runs_take_a_layout_that_fits(base):
    whole = plan(
        base, "grid.world_size=[1,2,4]", "grid.accumulation_steps=[1,2]", "grid.micro_batch_size=[8]"
    )
    small = whole.for_cluster(max_workers=1, device="cpu")
    layouts = {r.effective_batch_size: str(r.layout) for r in small.runs}
    assert layouts[16] == "8x1x2"
    assert layouts[64] == "8x4x2", "B=64 exists on four ranks only: it stays and is called infeasible"
    assert {r.effective_batch_size: str(r.layout) for r in whole.runs}[64] == "8x4x2"


def test_equally_many_micro_batches_run_on_fewest_ranks(base):
    grid = ("grid.world_size=[1,2]", "grid.accumulation_steps=[1,2]", "grid.micro_batch_size=[8]")
    layouts = {r.effective_batch_size: str(r.layout) for r in plan(base, *grid).runs}
    assert layouts == {8: "8x1x1", 16: "8x1x2", 32: "8x2x2"}


def test_probe_ids_carry_the_hardware_and_run_ids_do_not(base):
    cpu, gpu = (plan(base).for_cluster(max_workers=2, device=d) for d in ("cpu", "NVIDIA H100"))
    assert [r.run_id for r in cpu.runs] == [r.run_id for r in gpu.runs]
    assert not {r.run_id for r in cpu.probes} & {r.run_id for r in gpu.probes}


def test_multipliers_scale_the_base(base):
    result = plan(
        base,
        "grid.learning_rate_multiplier=[1,2]",
        "learning_rate_scaling={rule: sqrt, base_batch_size: 64, base_learning_rate: 0.1}",
    )
    rates = {p.learning_rate for p in result.points if p.effective_batch_size == 4096}
    assert sorted(rates) == pytest.approx([0.8, 1.6])


def test_absolute_rates_are_not_scaled_and_that_is_said(base):
    result = plan(base, "learning_rate_scaling={rule: sqrt, base_batch_size: 64}")
    assert {p.learning_rate for p in result.points} == {0.03, 0.1, 0.3, 1.0}
    assert "absolute" in result.notes[0]


def test_any_path_may_be_an_axis_and_layout_axes_do_not_split_runs(base):
    result = plan(base, "grid.strategy=[ddp,fsdp]", "grid.optimizer.momentum=[0.0,0.9]")
    assert len(result.points) == 216 * 4
    assert len(result.runs) == 120 * 2
    assert len(result.probes) == 18 * 4
    assert {tuple(r.axes) for r in result.runs} == {("optimizer.momentum",)}


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("grid.mirco_batch_size=[16]", "did you mean 'micro_batch_size'"),
        ("grid.cluster.address=[a]", "cannot be an axis"),
        ("grid.budget.max_optimizer_steps=[6,60]", "no part of what makes a run"),
        ("grid.noise_scale.enabled=[true,false]", "no part of what makes a run"),
        ("grid.seed={a: 1}", "seed"),
        ("grid.foo=[1]", "unknown grid axis 'foo'"),
        ("grid.seed=[]", "grid.seed=.. is empty"),
        ("grid.seed=[1,1]", "holds 1 twice"),
        ("grid.seed=[-1]", "whole number >= 0"),
        ("grid.learning_rate=[1e-3,0.001]", "holds 0.001 twice"),
        ("grid.learning_rate=[0]", "finite number > 0"),
        ("grid.learning_rate=[.inf]", "finite number > 0"),
        ("grid.learning_rate=[true]", "finite number > 0"),
        ("grid.micro_batch_size=[2.0]", "whole number >= 1"),
        ("grid.micro_batch_size=[0]", "whole number >= 1"),
        ("grid.optimizer.momentum=[0.9,2]", "optimizer.momentum=2.0 must be"),
        ("grid.optimizer.momentum=[abc]", "optimizer.momentum"),
    ],
)
def test_bad_axes_say_what_is_wrong_in_one_line(base, override, text):
    with pytest.raises(ConfigError, match=text) as caught:
        plan(base, override)
    assert "\n" not in str(caught.value)


def test_axes_that_exclude_each_other(base):
    replaced = plan(base, "grid.effective_batch_size=[64]")
    assert {p.effective_batch_size for p in replaced.points} == {64}
    base["grid"]["learning_rate_multiplier"] = [1.0]
    with pytest.raises(ConfigError, match="both given"):
        plan(base)
    assert len(plan(base, "grid.learning_rate_multiplier=null").points) == 216
    assert {p.learning_rate for p in plan(base, "grid.learning_rate=[0.5]").points} == {0.5}


def test_bitwise_needs_whole_grains(base):
    result = plan(base, "determinism=bitwise", "grain=16")
    assert {p.layout.micro_batch_size for p in result.points} == {32, 128}
    assert "micro_batch_size=8 is not a multiple of grain=16" in result.rejected[0].reason


def test_specs_survive_json(base):
    import json

    for spec in (plan(base).runs[0], plan(base).probes[0]):
        again = RunSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
        assert again == spec
        assert isinstance(again.layout, Layout)


def test_planning_loads_neither_torch_nor_ray(base):
    import json

    code = (
        "import sys, json; from gasweep.config import *;"
        "plan_sweep(parse_sweep_config(json.loads(sys.argv[1])));"
        "assert not {'torch','ray','scipy','matplotlib','wandb'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, json.dumps(base)], check=True)


def test_plan_json_has_the_published_keys(base):
    data = plan(base).to_dict()
    assert {"num_points", "num_runs", "num_probes", "points"} <= set(data)
    assert set(data["points"][0]) == {
        "micro_batch_size",
        "world_size",
        "accumulation_steps",
        "effective_batch_size",
        "learning_rate",
        "seed",
        "run_id",
    }
    assert all(math.isfinite(p["learning_rate"]) for p in data["points"])


def test_a_bench_runs_each_probe_that_skips_syncs_beside_one_that_does_not(base):
    bench = plan(base).for_bench()
    assert bench.runs == []
    pairs = {}
    for probe in bench.probes:
        pairs.setdefault(probe.layout, set()).add(probe.config.strategy_options.sync_every_micro_step)
    assert {len(v) for k, v in pairs.items() if k.world_size > 1 and k.accumulation_steps > 1} == {2}
    assert {len(v) for k, v in pairs.items() if k.world_size == 1 or k.accumulation_steps == 1} == {1}
    assert len({probe.run_id for probe in bench.probes}) == len(bench.probes)


def test_inline_says_before_it_runs_that_it_has_one_rank(base):
    alone = plan(base, "cluster.backend=inline", "grid.world_size=[1]")
    assert not alone.notes
    (note,) = plan(base, "cluster.backend=inline", "grid.world_size=[1,2]").notes
    assert "world_size above 1 will be listed as infeasible" in note


def test_sizes_and_rates_that_no_machine_can_hold_are_refused(base):
    with pytest.raises(ConfigError, match="at most 16777216 and 2147483647 can be indexed"):
        plan(base, "grid.micro_batch_size=[99999999999999999999]")
    scaled = ("learning_rate_scaling={rule: linear, base_batch_size: 1, base_learning_rate: 1e308}",)
    for multiplier in ("1", "1e-320"):
        with pytest.raises(ConfigError, match=f"grid.learning_rate_multiplier={multiplier}"):
            plan(base, f"grid.learning_rate_multiplier=[{multiplier}]", *scaled)


def test_a_batch_beyond_the_budget_is_said(base):
    (note,) = plan(
        base,
        "budget.max_examples=100",
        "grid.micro_batch_size=[50,100,200]",
        "grid.world_size=[1]",
        "grid.accumulation_steps=[1]",
    ).notes
    assert "less than one optimizer step of B=200" in note


def test_a_bench_of_a_bitwise_config_has_no_twins_that_would_be_refused(base):
    changes = ("determinism=bitwise", "grain=4", "grid.world_size=[2]", "grid.accumulation_steps=[4]")
    bench = plan(base, *changes).for_bench()
    assert bench.probes
    assert not any(probe.config.strategy_options.sync_every_micro_step for probe in bench.probes)
