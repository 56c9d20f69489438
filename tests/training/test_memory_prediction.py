"""What is counted before a run against what the run's tensors take, to the byte where bytes are exact."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

from gasweep.config.run_spec import RunSpec
from gasweep.tasks.resolve import resolve_task
from gasweep.training.advance import Stepper
from gasweep.training.build import build_trainer
from gasweep.training.memory.predict import predict_memory
from gasweep.training.process import ProcessContext
from gasweep.training.progress import RunProgress
from tests.training.toys import toy_spec

WIDE: dict[str, Any] = {"arguments": {"width": 40_000}}  # 8 parameters per unit of width


def steps_of(spec: RunSpec) -> Stepper:
    trainer = build_trainer(spec, process=ProcessContext())
    stepper = Stepper(trainer, progress=RunProgress(), sink=lambda **_: None, flags=lambda: (False, False))
    stepper.attempt()
    return stepper


def held_bytes(stepper: Any) -> dict[str, int]:
    trainer = stepper._trainer
    tensors = [tensor for _, tensor in trainer.parts.parameters]
    slots = [v for s in trainer.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    return {
        "parameters": sum(p.nbytes for p in trainer.parts.module.parameters()),
        "gradients": sum(t.grad.nbytes for t in tensors if t.grad is not None),
        "optimizer": sum(v.nbytes for v in slots if v.numel() > 1),
    }


@pytest.mark.parametrize(
    "optimizer", [{}, {"momentum": 0.9}, {"name": "adam"}, {"name": "adamw", "weight_decay": 0.1}]
)
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_what_is_held_is_predicted_to_the_byte(optimizer: dict[str, Any], precision: str) -> None:
    spec = toy_spec(optimizer=optimizer, precision=precision, arguments={"dtype": "float64"})
    if precision == "fp32":
        spec = toy_spec(optimizer=optimizer)
    found = dataclasses.asdict(predict_memory(spec))
    assert {name: found[name] for name in ("parameters", "gradients", "optimizer")} == held_bytes(
        steps_of(spec)
    )


@pytest.mark.parametrize("micro_batch_size", [1, 7])
@pytest.mark.parametrize("target", ["FashionMnist", "TextLm", "Digits"])
def test_activations_are_the_examples_and_what_autograd_saves(target: str, micro_batch_size: int) -> None:
    spec = toy_spec(layout=(micro_batch_size, 1, 1))
    spec = dataclasses.replace(
        spec, config=dataclasses.replace(spec.config, task={"_target_": f"gasweep.tasks.{target}"})
    )
    task = resolve_task(spec.config.task)
    module = task.build_model()
    own = {t.untyped_storage().data_ptr() for t in [*module.parameters(), *module.buffers()]}
    saved: dict[int, int] = {}
    kept = []

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
            kept.append(storage)
        return tensor

    batch = task.train_data(root=None).batch(np.arange(micro_batch_size))
    with saved_tensors_hooks(save, lambda tensor: tensor):
        task.loss(module, batch)
        for tensor in batch:
            save(tensor)
    predicted = predict_memory(spec).activations
    assert predicted == pytest.approx(sum(saved.values()), rel=0.01)


def measured_peak(spec: RunSpec) -> int:
    """Most bytes that torch's allocator had given out over two optimizer steps, the building included."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        steps_of(spec).attempt()
    totals, waiting = [], list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.name == "[memory]":
            totals.append((event.start_time_ns, event.extra_fields.total_allocated))
    totals.sort()
    return max(total for _, total in totals) - totals[0][1]


@pytest.mark.parametrize("optimizer", [{}, {"name": "adamw"}])
@pytest.mark.parametrize("layout", [(8, 1, 2), (512, 1, 2)])
def test_the_peak_is_predicted_within_ten_percent(optimizer: dict[str, Any], layout: Any) -> None:
    spec = toy_spec(layout=layout, optimizer=optimizer, **WIDE)
    assert predict_memory(spec).peak == pytest.approx(measured_peak(spec), rel=0.1)


def test_no_gradient_is_counted_for_the_examples() -> None:
    """An image classifier's largest tensor is its input, through which no gradient flows back."""
    spec = toy_spec(layout=(1024, 1, 1))
    task = {"_target_": "gasweep.tasks.FashionMnist", "hidden": 32}
    spec = dataclasses.replace(spec, config=dataclasses.replace(spec.config, task=task))
    found = predict_memory(spec)
    assert found.backward == 2 * 1024 * 32 * 4
    assert found.activations is not None
    assert found.activations > 1024 * 784 * (1 + 4)


def test_bitwise_sums_take_eight_bytes_an_element_and_one_grain_of_activations() -> None:
    fast = predict_memory(toy_spec(layout=(8, 1, 1)))
    bitwise = predict_memory(toy_spec(layout=(8, 1, 1), determinism="bitwise", grain=2))
    assert (bitwise.sums, bitwise.gradients) == (2 * fast.parameters, 0)
    assert fast.activations is not None
    assert bitwise.activations is not None
    assert bitwise.activations < fast.activations


def test_fsdp_options_cost_what_they_are_said_to() -> None:
    def of(**options: bool) -> Any:
        spec = toy_spec(layout=(2, 2, 4), strategy="fsdp", strategy_options=options, **WIDE)
        return predict_memory(spec)

    size = predict_memory(toy_spec(**WIDE)).parameters
    assert (of().parameters, of().gradients) == (size // 2, size)
    assert of(sync_every_micro_step=True).gradients == size // 2
    kept = of(reshard_after_forward=False, reshard_after_backward=False)
    assert kept.parameters == size // 2 + size
    assert of(reshard_after_forward=False).gathered >= of().gathered > of(sync_every_micro_step=True).updating


def test_a_loss_that_looks_at_values_gets_a_reason_instead_of_a_number() -> None:
    found = predict_memory(toy_spec(task="ToyBranches"))
    assert found.activations is None
    assert found.peak is None
    assert found.reason
