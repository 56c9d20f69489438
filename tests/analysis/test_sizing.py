import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasweep.analysis.learning_rate_scaling import noise_limited_learning_rate, scaled_learning_rate
from gasweep.analysis.sizing import Baseline, size_run
from gasweep.errors import BatchError


def test_4096_by_8_on_64_ranks_is_8_passes():
    sizing = size_run(effective_batch_size=4096, largest_micro_batch_size=8, world_size=64)
    assert (sizing.accumulation_steps, sizing.effective_batch_size) == (8, 4096)
    assert not sizing.incomplete_groups


def test_1000_by_48_on_7_ranks_stays_1000_exactly():
    sizing = size_run(effective_batch_size=1000, largest_micro_batch_size=48, world_size=7)
    assert (sizing.accumulation_steps, sizing.effective_batch_size) == (3, 1000)
    assert sizing.incomplete_groups
    assert any("stays exactly 1000" in reason for reason in sizing.reasons)


def test_nearest_multiple_is_said():
    sizing = size_run(
        effective_batch_size=1000, largest_micro_batch_size=48, world_size=7, allow_incomplete_groups=False
    )
    assert sizing.effective_batch_size == 1008 == 48 * 7 * sizing.accumulation_steps
    assert any("moved to the nearest multiple, 1008" in reason for reason in sizing.reasons)


@given(total=st.integers(1, 10_000), b=st.integers(1, 300), n=st.integers(1, 100), incomplete=st.booleans())
def test_the_choice_is_consistent(total, b, n, incomplete):
    if total < n:
        with pytest.raises(BatchError, match="smaller than world_size"):
            size_run(effective_batch_size=total, largest_micro_batch_size=b, world_size=n)
        return
    sizing = size_run(
        effective_batch_size=total,
        largest_micro_batch_size=b,
        world_size=n,
        allow_incomplete_groups=incomplete,
    )
    product = sizing.micro_batch_size * n * sizing.accumulation_steps
    assert sizing.micro_batch_size <= b
    assert product >= sizing.effective_batch_size
    if sizing.incomplete_groups:
        assert sizing.effective_batch_size == total
    else:
        assert product == sizing.effective_batch_size


def test_the_rate_is_linear_below_the_knee_and_square_root_above():
    base = Baseline(learning_rate=0.1, effective_batch_size=256)

    def rate(total):
        return size_run(
            effective_batch_size=total,
            largest_micro_batch_size=64,
            world_size=4,
            baseline=base,
            critical_batch_size=1024,
        ).learning_rate

    assert rate(512) == pytest.approx(0.2)
    assert rate(1024) == pytest.approx(0.4)
    assert rate(4096) == pytest.approx(0.8)


def test_adam_scales_by_the_square_root_and_warms_up_by_its_half_life():
    sizing = size_run(
        effective_batch_size=1024,
        largest_micro_batch_size=64,
        world_size=4,
        optimizer="adamw",
        baseline=Baseline(learning_rate=1e-3, effective_batch_size=256),
        beta2=0.95,
    )
    assert sizing.learning_rate == pytest.approx(2e-3)
    assert sizing.warmup_optimizer_steps == 40


def test_sgd_with_a_scaled_up_rate_warms_up_for_five_epochs_or_warns():
    base = Baseline(learning_rate=0.1, effective_batch_size=256)
    kwargs = {"effective_batch_size": 8192, "largest_micro_batch_size": 32, "world_size": 256}
    known = size_run(**kwargs, baseline=base, epoch_examples=1_281_167)
    assert known.warmup_optimizer_steps == 782
    assert known.warnings == []
    unknown = size_run(**kwargs, baseline=base)
    assert "32x the baseline's and there is no warm-up" in unknown.warnings[0]
    short = size_run(**kwargs, baseline=base, epoch_examples=1_281_167, planned_optimizer_steps=1000)
    assert short.warmup_optimizer_steps == 50
    assert "no warm-up" in size_run(**kwargs).warnings[0]


def test_json_keys():
    sizing = size_run(effective_batch_size=64, largest_micro_batch_size=8, world_size=2)
    published = "effective_batch_size micro_batch_size world_size accumulation_steps learning_rate"
    assert {*published.split(), "warmup_optimizer_steps", "reasons"} <= set(sizing.to_dict())


@pytest.mark.parametrize(("rule", "expected"), [("none", 1), ("linear", 16), ("sqrt", 4), ("knee", 8)])
def test_rules(rule, expected):
    rate = scaled_learning_rate(1.0, rule=rule, batch_size=1024, base_batch_size=64, knee_batch_size=256)
    assert rate == pytest.approx(expected)


def test_unknown_rule():
    with pytest.raises(ValueError, match="rule='cubic'"):
        scaled_learning_rate(1.0, rule="cubic", batch_size=2, base_batch_size=1)


def test_noise_limited_rate_is_half_at_the_noise_scale():
    assert noise_limited_learning_rate(2.0, noise_scale=100, batch_size=100) == 1.0
