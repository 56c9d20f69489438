"""An accumulated gradient is the float64 gradient of the whole batch, within a bound proven by element.

The cases, the exact gradient and the bound are those of `experiments/gradient_error.py`.
"""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from experiments.gradient_error import Case, exact_and_bound, examine, gradient_of, spec_of
from gasweep.training import ProcessContext
from tests.training.ranks import run_on_ranks


def on_rank(rank, *, spec):
    return gradient_of(ProcessContext(rank=rank, world_size=spec.layout.world_size), spec=spec)


def run(spec):
    if spec.layout.world_size == 1:
        return on_rank(0, spec=spec)
    outcomes = run_on_ranks(spec.layout.world_size, on_rank, spec=spec)
    assert all(np.array_equal(outcomes[0][0], other[0]) for other in outcomes)
    return outcomes[0]


@st.composite
def cases(draw):
    determinism = draw(st.sampled_from(["fast", "bitwise"]))
    grain = draw(st.sampled_from([1, 2, 4])) if determinism == "bitwise" else 1
    world_size = draw(st.sampled_from([1, 2, 4]))
    return Case(
        effective_batch_size=draw(st.integers(world_size, 60)),
        micro_batch_size=grain * draw(st.integers(1, 16 // grain)),
        world_size=world_size,
        strategy=draw(st.sampled_from(["ddp", "fsdp"])),
        precision=draw(st.sampled_from(["fp32", "fp64", "bf16"])),
        determinism=determinism,
        grain=grain,
        spread=draw(st.sampled_from([0, 6, 12])),
        seed=draw(st.integers(0, 2**31 - 1)),
    )


@pytest.mark.multiprocess
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(case=cases())
def test_error_stays_below_its_bound_in_every_layout_precision_and_mode(case):
    outcome = examine(case, run)
    note(f"relative error {outcome.relative_error:.2e}, error / bound {outcome.ratio:.3f}")
    assert outcome.ratio <= 1.0


@settings(max_examples=20, deadline=None, derandomize=True)
@given(case=cases(), others=st.lists(st.integers(1, 4), min_size=2, max_size=2))
def test_bitwise_gradients_of_one_batch_are_equal_bit_for_bit(case, others):
    assume(case.determinism == "bitwise")
    spec = spec_of(case)
    sizes = {case.micro_batch_size, *(case.grain * size for size in others)}
    gradients = [
        on_rank(0, spec=spec_of(Case(**{**vars(case), "micro_batch_size": size, "world_size": 1})))[0]
        for size in sorted(sizes)
    ]
    assert spec.effective_batch_size == case.effective_batch_size
    assert all(np.array_equal(gradients[0], other) for other in gradients)


def test_the_bound_is_tight_enough_to_see_a_mean_of_means():
    """Averaging per group instead of over items exceeds the bound by orders of magnitude."""
    case = Case(
        effective_batch_size=12,
        micro_batch_size=4,
        world_size=1,
        strategy="ddp",
        precision="fp32",
        determinism="fast",
        grain=1,
        spread=0,
        seed=3,
    )
    spec = spec_of(case)
    gradient, parameters, indices = on_rank(0, spec=spec)
    exact, bound = exact_and_bound(case, spec, parameters, indices)
    groups = [
        exact_and_bound(case, spec, parameters, indices[start : start + 4])[0] for start in range(0, 12, 4)
    ]
    assert float((np.abs(gradient - exact) / bound).max()) < 1
    assert float((np.abs(np.mean(groups, axis=0) - exact) / bound).max()) > 1e3
    assert math.isfinite(bound.max())
