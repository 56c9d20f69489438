"""`verify` tells equal bits, rounding and real differences apart, and names the cause of the last."""

import dataclasses
import json
import re

import pytest
import torch

from gasweep.config.load import parse_sweep_config
from gasweep.config.run_spec import Layout
from gasweep.errors import ConfigError
from gasweep.training.local_ranks import LocalRanks
from gasweep.training.verify.choose import choose_runs
from gasweep.training.verify.compare import compare, deviation, shared_by_equals
from gasweep.training.verify.take_step import Taken
from gasweep.training.verify.verify import verify


@pytest.fixture(scope="module")
def ranks():
    with LocalRanks(timeout_s=120) as pool:
        yield pool


def sweep(task, *, module="verify_tasks", arguments=None, grid=None, **sections):
    return parse_sweep_config(
        {
            "task": {"_target_": f"tests.training.{module}.{task}", **(arguments or {})},
            "grid": {
                "micro_batch_size": [4],
                "world_size": [1, 2],
                "effective_batch_size": [12],
                "learning_rate": [0.05],
                **(grid or {}),
            },
            "target": {"value": 0.0},
            "budget": {"max_optimizer_steps": 5},
            "sweep": {"incomplete_groups": True},
            **sections,
        }
    )


def verified(ranks, task, *, max_layouts=5, **options):
    return verify(sweep(task, **options), max_layouts=max_layouts, ranks=ranks)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("task", "arguments"),
    [
        ("ToyRegression", {}),
        ("ToyRegression", {"mean": True}),
        ("ToyTokens", {}),
        ("ToyTokens", {"mean": True}),
    ],
)
def test_a_right_task_is_equal_to_rounding(ranks, task, arguments):
    answer = verified(ranks, task, module="toys", arguments=arguments)
    assert answer.equal == "rounding"
    assert answer.causes == []
    assert answer.exit_code == 0
    assert {layout.world_size for layout in answer.layouts} == {1, 2}
    assert all(pair.gradient_deviation <= pair.gradient_bound for pair in answer.pairs if pair.gradient_bound)
    assert max(pair.gradient_deviation for pair in answer.pairs) < 1e-6
    assert answer.reference_deviation < 1e-6


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("task", "module", "arguments", "cause"),
    [
        ("ToyRegression", "toys", {"batch_norm": True}, r"^BatchNorm: 1 \(BatchNorm1d\)"),
        ("ToyRegression", "toys", {"dropout": 0.3}, r"^dropout by rank: 2 \(p=0.3\)"),
        ("FunctionalDropout", "verify_tasks", {}, "^dropout by rank: called as a function"),
        ("PerMicroBatchMean", "verify_tasks", {}, "^per-micro-batch mean"),
        (
            "TokenMeanCountedInExamples",
            "verify_tasks",
            {},
            "^count mismatch: groups counted as 2, 3, 4",
        ),
        (
            "CountsDisagree",
            "verify_tasks",
            {},
            "^count mismatch: .* num_items=0, but .* says 6",
        ),
        ("InBatchNegatives", "verify_tasks", {}, "^coupling: .*in-batch negatives"),
        ("MutatesBuffer", "verify_tasks", {}, "^state changed by the forward: buffer 1.calls"),
        ("PythonRandom", "verify_tasks", {}, "^hidden state"),
        ("TorchNoise", "verify_tasks", {}, "^random loss"),
        ("DependsOnNeighbours", "verify_tasks", {}, "^data order"),
        ("RandomBatches", "verify_tasks", {}, "^random data"),
        (
            "KnowsItsRank",
            "verify_tasks",
            {},
            "^no known cause: layouts agree .* share world_size",
        ),
        ("ZeroHead", "verify_tasks", {}, r"^BatchNorm: 1 \(BatchNorm1d\)"),
    ],
)
def test_each_wrong_task_is_caught_and_its_cause_named(ranks, task, module, arguments, cause):
    answer = verified(ranks, task, module=module, arguments=arguments)
    assert answer.equal == "different"
    assert answer.exit_code == 1
    named = [text for text in answer.causes if not text.startswith("the task breaks its contract")]
    assert len(named) == 1
    assert re.search(cause, named[0]), named


@pytest.mark.multiprocess
def test_a_counter_of_batches_is_no_parameter(ranks):
    answer = verified(ranks, "ToyRegression", module="toys", arguments={"batch_norm": True})
    assert 0.0 < max(pair.parameter_deviation for pair in answer.pairs) < 1.0


@pytest.mark.multiprocess
def test_dropout_in_fast_mode_is_said_to_be_all_that_differs(ranks):
    answer = verified(ranks, "ToyRegression", module="toys", arguments={"dropout": 0.3})
    assert answer.notes == ["compared in float64 with dropout off, the layouts agree to rounding"]
    assert all(pair.equal == "different" and pair.gradient_bound is None for pair in answer.pairs)


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_bitwise_mode_with_dropout_and_clipping_has_equal_bits(ranks, strategy):
    answer = verified(
        ranks,
        "ToyRegression",
        module="toys",
        arguments={"dropout": 0.3},
        determinism="bitwise",
        grain=2,
        strategy=strategy,
        optimizer={"name": "adamw", "max_grad_norm": 0.1},
    )
    assert answer.equal == "bitwise"
    assert answer.causes == []
    assert all(layout.micro_batch_size % 2 == 0 for layout in answer.layouts)
    assert all(pair.gradient_deviation == 0.0 == pair.parameter_deviation for pair in answer.pairs)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("task", "module", "arguments", "cause"),
    [
        ("ToyRegression", "toys", {"batch_norm": True}, r"determinism=bitwise: 1 \(BatchNorm1d\) computes"),
        ("MutatesBuffer", "verify_tasks", {}, "determinism=bitwise: the forward changes the buffer 1.calls"),
        ("PythonRandom", "verify_tasks", {}, "hidden state"),
    ],
)
def test_bitwise_mode_that_cannot_be_kept_is_different_and_says_why(ranks, task, module, arguments, cause):
    answer = verified(
        ranks, task, module=module, arguments=arguments, determinism="bitwise", grain=2, max_layouts=3
    )
    assert answer.equal == "different"
    assert any(re.search(cause, text) for text in answer.causes), answer.causes


@pytest.mark.multiprocess
@pytest.mark.parametrize("precision", ["fp64", "bf16"])
def test_other_precisions_are_judged_in_float64(ranks, precision):
    answer = verified(
        ranks,
        "ToyRegression",
        module="toys",
        arguments={"dtype": "float64"} if precision == "fp64" else {},
        precision=precision,
    )
    assert answer.equal == "rounding"


@pytest.mark.multiprocess
def test_a_difference_that_low_precision_would_drown_is_seen(ranks):
    answer = verified(ranks, "InBatchNegatives", precision="bf16")
    assert answer.equal == "different"


@pytest.mark.multiprocess
def test_answer_is_json_of_the_documented_shape(ranks):
    data = json.loads(json.dumps(verified(ranks, "ToyRegression", module="toys", max_layouts=3).to_dict()))
    assert {"equal", "pairs", "causes"} <= data.keys()
    assert data["pairs"][0]["first"] == {"micro_batch_size": 12, "world_size": 1, "accumulation_steps": 1}


def test_chosen_layouts_share_one_batch_and_start_with_a_single_group():
    runs = choose_runs(sweep("ToyRegression", module="toys", grid={"effective_batch_size": [24, 12, 1]}))
    assert {run.effective_batch_size for run in runs} == {12}
    assert runs[0].layout == Layout(micro_batch_size=12, world_size=1, accumulation_steps=1)
    assert Layout(micro_batch_size=4, world_size=2, accumulation_steps=2) in [run.layout for run in runs]
    assert len({run.layout for run in runs}) == len(runs)


def test_chosen_layouts_respect_ranks_grain_and_strategy():
    config = sweep("ToyRegression", module="toys", grid={"effective_batch_size": [24], "world_size": [1]})
    assert {run.layout.world_size for run in choose_runs(config, max_world_size=1)} == {1}
    alone = dataclasses.replace(config, strategy="single")
    assert {run.layout.world_size for run in choose_runs(alone)} == {1}
    grained = dataclasses.replace(config, determinism="bitwise", grain=4)
    assert all(run.layout.micro_batch_size % 4 == 0 for run in choose_runs(grained))


def test_a_batch_that_is_not_in_the_grid_is_refused_with_those_that_are():
    config = sweep("ToyRegression", module="toys", grid={"effective_batch_size": [12, 24]})
    with pytest.raises(ConfigError, match=r"effective_batch_size=7 is not in the grid; .* 12, 24"):
        choose_runs(config, effective_batch_size=7)
    with pytest.raises(ConfigError, match="one layout only"):
        choose_runs(
            sweep("ToyRegression", module="toys", grid={"effective_batch_size": [1], "world_size": [1]})
        )


def taken(value, *, loss=1.0):
    return Taken(gradients={"w": torch.tensor(value)}, parameters={"w": torch.tensor(value)}, loss=loss)


def layouts(*bs):
    return [Layout(micro_batch_size=b, world_size=1, accumulation_steps=8 // b) for b in bs]


def test_a_pair_without_bounds_is_equal_only_in_bits():
    pairs = compare(layouts(8, 4, 2), [taken([1.0, 2.0]), taken([1.0, 2.0]), taken([1.0, 2.0 + 2**-20])])
    assert [pair.equal for pair in pairs] == ["bitwise", "different", "different"]
    assert pairs[1].gradient_deviation == 2**-20
    assert pairs[1].gradient_scale == 2.0
    assert "differ most, in the gradient of w" in shared_by_equals(pairs)


def test_missing_and_non_finite_gradients_are_infinitely_far():
    one = torch.ones(2)
    assert deviation(one, None) == float("inf")
    assert deviation(None, None) == 0.0
    assert deviation(one, torch.tensor([1.0, float("nan")])) == float("inf")
