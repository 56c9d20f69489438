"""Every (b, N, G) of one B is the same run: gradients from common parameters, and whole trajectories."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gasweep.config.run_spec import RunSpec
from tests.training.ranks import run_on_ranks
from tests.training.toys import gradients_of, toy_spec, train_toy

LAYOUTS = [
    ("single", (24, 1, 1)),
    ("single", (8, 1, 3)),
    ("single", (1, 1, 24)),
    ("ddp", (12, 2, 1)),
    ("ddp", (4, 2, 3)),
    ("ddp", (1, 2, 12)),
    ("fsdp", (6, 2, 2)),
    ("fsdp", (3, 2, 4)),
]
TASKS: list[tuple[str, dict[str, Any]]] = [
    ("ToyRegression", {}),
    ("ToyRegression", {"mean": True}),
    ("ToyTokens", {}),
    ("ToyTokens", {"mean": True}),
]


def gradients(spec: RunSpec) -> tuple[dict[str, np.ndarray[Any, Any]], float]:
    world_size = spec.layout.world_size
    if world_size == 1:
        return gradients_of(spec=spec)[:2]
    outcomes = run_on_ranks(world_size, gradients_of, spec=spec)
    for other, loss, _ in outcomes[1:]:
        assert loss == outcomes[0][1]
        assert all(np.array_equal(other[name], outcomes[0][0][name]) for name in other)
    return outcomes[0][:2]


def assert_equal_gradients(spec: RunSpec, reference: RunSpec, *, relative: float) -> None:
    found, loss = gradients(spec)
    expected, expected_loss = gradients(reference)
    assert loss == pytest.approx(expected_loss, rel=relative)
    assert found.keys() == expected.keys()
    for name in expected:
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=relative * scale, err_msg=name)


@pytest.mark.multiprocess
@pytest.mark.parametrize(("strategy", "layout"), LAYOUTS)
@pytest.mark.parametrize(("task", "arguments"), TASKS)
def test_gradient_equals_one_big_batch_in_float64(
    strategy: str, layout: tuple[int, int, int], task: str, arguments: dict[str, Any]
) -> None:
    common: dict[str, Any] = {
        "task": task,
        "arguments": {"dtype": "float64", **arguments},
        "precision": "fp64",
    }
    assert_equal_gradients(
        toy_spec(layout=layout, strategy=strategy, **common),
        toy_spec(layout=(24, 1, 1), **common),
        relative=1e-12,
    )


@pytest.mark.multiprocess
@pytest.mark.parametrize(("strategy", "layout"), LAYOUTS)
def test_gradient_equals_one_big_batch_to_rounding_in_float32(
    strategy: str, layout: tuple[int, int, int]
) -> None:
    assert_equal_gradients(
        toy_spec(layout=layout, strategy=strategy), toy_spec(layout=(24, 1, 1)), relative=2e-6
    )


@pytest.mark.multiprocess
@pytest.mark.parametrize("total", [20, 5, 7, 3])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("task", ["ToyRegression", "ToyTokens"])
def test_incomplete_groups_are_weighted_by_their_true_counts(strategy: str, total: int, task: str) -> None:
    """20 on two ranks with b=4 is 4, 4, 2 on each; 5 is 4 + 0 groups on the second rank's last micro-step."""
    common: dict[str, Any] = {
        "task": task,
        "arguments": {"dtype": "float64"},
        "precision": "fp64",
        "effective_batch_size": total,
    }
    assert_equal_gradients(
        toy_spec(layout=(2, 2, math.ceil(math.ceil(total / 2) / 2)), strategy=strategy, **common),
        toy_spec(layout=(total, 1, 1), **common),
        relative=1e-12,
    )


@pytest.mark.multiprocess
def test_every_factorisation_takes_the_same_trajectory_in_float64() -> None:
    """40 SGD steps with momentum, clipping and a schedule: the loss curves agree to 1e-6."""
    common: dict[str, Any] = {
        "arguments": {"dtype": "float64"},
        "precision": "fp64",
        "max_optimizer_steps": 40,
        "learning_rate": 0.1,
        "optimizer": {"momentum": 0.9, "max_grad_norm": 0.5},
        "schedule": {"name": "cosine", "warmup_optimizer_steps": 5, "horizon_examples": 2000},
    }
    curves = {}
    for strategy, layout in LAYOUTS:
        spec = toy_spec(layout=layout, strategy=strategy, **common)
        if layout[1] == 1:
            result, steps, _ = train_toy(spec=spec)
        else:
            result, steps, _ = run_on_ranks(layout[1], train_toy, spec=spec)[0]
        evaluated = [e.metrics["eval_loss"] for e in result.evaluations]
        curves[strategy, layout] = np.array([*(step.loss for step in steps), *evaluated])
    reference = curves[LAYOUTS[0]]
    assert len(reference) > 50
    for curve in curves.values():
        np.testing.assert_allclose(curve, reference, rtol=1e-6)
    assert reference[39] < 0.9 * reference[0]


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("task", ["ToyRegression", "ToyTokens"])
def test_syncing_every_micro_step_gives_the_same_gradient(strategy: str, task: str) -> None:
    common: dict[str, Any] = {"task": task, "arguments": {"dtype": "float64"}, "precision": "fp64"}
    assert_equal_gradients(
        toy_spec(
            layout=(3, 2, 4), strategy=strategy, strategy_options={"sync_every_micro_step": True}, **common
        ),
        toy_spec(layout=(24, 1, 1), **common),
        relative=1e-12,
    )


@pytest.mark.multiprocess
@pytest.mark.parametrize("activation_checkpointing", [False, True])
@pytest.mark.parametrize("reshard_after_forward", [False, True])
@pytest.mark.parametrize("reshard_after_backward", [False, True])
def test_fsdp_options_do_not_change_the_gradient(
    activation_checkpointing: bool, reshard_after_forward: bool, reshard_after_backward: bool
) -> None:
    common: dict[str, Any] = {"arguments": {"dtype": "float64"}, "precision": "fp64"}
    options = {
        "activation_checkpointing": activation_checkpointing,
        "reshard_after_forward": reshard_after_forward,
        "reshard_after_backward": reshard_after_backward,
    }
    assert_equal_gradients(
        toy_spec(layout=(3, 2, 4), strategy="fsdp", strategy_options=options, **common),
        toy_spec(layout=(24, 1, 1), **common),
        relative=1e-12,
    )


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_ranks", [3, 4])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_more_ranks(num_ranks: int, strategy: str) -> None:
    common: dict[str, Any] = {
        "task": "ToyTokens",
        "arguments": {"dtype": "float64"},
        "precision": "fp64",
        "effective_batch_size": 23,
    }
    assert_equal_gradients(
        toy_spec(layout=(2, num_ranks, math.ceil(23 / (2 * num_ranks))), strategy=strategy, **common),
        toy_spec(layout=(23, 1, 1), **common),
        relative=1e-12,
    )
