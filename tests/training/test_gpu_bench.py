"""A smoke test of `experiments/gpu_bench.py` on the CPU: it must run where there is no GPU to try it on."""

import re

import pytest

from experiments.gpu_bench import bench, largest, plan_of


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_step_is_timed_and_its_memory_predicted(checkpointing):
    plan = plan_of(tiny=True, checkpointing=checkpointing, micro_batch_size=2)
    line = bench(plan.probes[0], device="cpu")
    assert re.search(r"b = 2, G = 2: [\d.]+ ms/step, [\d,]+ tokens/s, MFU unknown, peak [\d,]+ MB", line)


@pytest.mark.multiprocess
def test_the_largest_size_is_searched_twice():
    plan = plan_of(tiny=True, checkpointing=False, micro_batch_size=2)
    line = largest(plan, device="cpu", limit=4)
    assert "largest b: 4 in 3 trials" in line
    assert "true limit 4 (the search's own limit, not the memory's): 100.0% of it" in line


def test_the_model_for_a_gpu_has_a_hundred_million_parameters():
    from gasweep.training.memory.predict import predict_memory

    plan = plan_of(tiny=False, checkpointing=True, micro_batch_size=8)
    found = predict_memory(plan.probes[0])
    assert found.parameters >= 4 * 100_000_000
    without = predict_memory(plan_of(tiny=False, checkpointing=False, micro_batch_size=8).probes[0])
    assert found.activations is not None
    assert without.activations is not None
    assert found.activations < without.activations / 3
