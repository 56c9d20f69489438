import pytest

from gasweep.config import parse_sweep_config, plan_sweep
from gasweep.training.memory.probe import (
    DoesNotFit,
    available_bytes,
    is_out_of_memory,
    probe_largest_micro_batch,
)

MIB = 2**20


def plan(**task):
    return plan_sweep(
        parse_sweep_config(
            {
                "task": {"_target_": "gasweep.tasks.NoisyQuadratic", **task},
                "grid": {"micro_batch_size": 1, "learning_rate": 1e-3},
                "target": {"value": 0.0},
                "budget": {"max_optimizer_steps": 10},
            }
        )
    )


@pytest.mark.multiprocess
def test_the_answer_has_run_and_the_next_size_does_not_fit():
    found = probe_largest_micro_batch(
        plan(dimension=200_000), world_size=1, start=48, limit=4096, resolution=0.3, limit_bytes=700 * MIB
    )
    largest = found.search.largest
    assert largest is not None
    assert not found.search.reached_limit
    assert (largest, True) in found.search.tried
    assert any(not fitted and size <= 1.3 * largest for size, fitted in found.search.tried)
    assert found.peak_bytes[largest] <= 700 * MIB


def test_out_of_memory_is_told_from_other_errors():
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"))
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert not is_out_of_memory(DoesNotFit("rank 0"))


def test_available_memory_is_a_positive_number():
    assert available_bytes() > 0
