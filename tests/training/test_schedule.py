from __future__ import annotations

import math

import pytest

from gasweep.config.schema import ScheduleConfig
from gasweep.errors import ConfigError
from gasweep.training.schedule import check_schedule, learning_rate_factor
from tests.training.ranks import run_on_ranks
from tests.training.toys import toy_spec, train_toy


def factor(schedule: ScheduleConfig, optimizer_step: int, *, batch_size: int = 1) -> float:
    return learning_rate_factor(
        schedule, optimizer_step=optimizer_step, contributions=(optimizer_step - 1) * batch_size
    )


def test_c23_warmup_counts_optimizer_steps() -> None:
    """Warm-up 8, G=4: after 4 updates half the peak, not the whole."""
    spec = toy_spec(
        layout=(1, 1, 4), learning_rate=0.1, max_optimizer_steps=9, schedule={"warmup_optimizer_steps": 8}
    )
    rates = [record.learning_rate for record in train_toy(spec=spec)[1]]
    assert rates[3] == pytest.approx(0.05)
    assert rates == pytest.approx([0.1 * min(1, n / 8) for n in range(1, 10)])


@pytest.mark.multiprocess
def test_c24_warmup_does_not_run_faster_on_more_ranks() -> None:
    """Warm-up 100, N=4: at update 10 a tenth of the peak, not 0.40."""
    spec = toy_spec(
        layout=(1, 4, 1), learning_rate=1e-3, max_optimizer_steps=10, schedule={"warmup_optimizer_steps": 100}
    )
    record = run_on_ranks(4, train_toy, spec=spec)[0][1][9]
    assert record.optimizer_step == 10
    assert record.learning_rate == pytest.approx(0.10 * 1e-3)


def test_the_first_update_moves() -> None:
    assert factor(ScheduleConfig(warmup_optimizer_steps=4), 1) == 0.25


def test_linear_and_cosine_decay_over_examples() -> None:
    linear = ScheduleConfig(name="linear", horizon_examples=100, final_fraction=0.2)
    assert factor(linear, 1, batch_size=10) == 1.0
    assert factor(linear, 6, batch_size=10) == pytest.approx(0.6)
    assert factor(linear, 11, batch_size=10) == factor(linear, 500, batch_size=10) == pytest.approx(0.2)
    cosine = ScheduleConfig(name="cosine", horizon_examples=100)
    assert factor(cosine, 6, batch_size=10) == pytest.approx(0.5)
    assert factor(cosine, 4, batch_size=10) == pytest.approx((1 + math.cos(0.3 * math.pi)) / 2)


def test_at_equal_examples_decay_is_equal_at_every_batch_size() -> None:
    schedule = ScheduleConfig(name="cosine", horizon_examples=1000, warmup_optimizer_steps=2)
    factors = {factor(schedule, 1 + 640 // size, batch_size=size) for size in (1, 2, 8, 64, 128)}
    assert len(factors) == 1


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (ScheduleConfig(name="cosin"), "did you mean 'cosine'"),
        (ScheduleConfig(name="linear"), "horizon_examples is null"),
        (ScheduleConfig(name="linear", horizon_examples=0), "horizon_examples=0 must be >= 1"),
        (ScheduleConfig(warmup_optimizer_steps=-1), "warmup_optimizer_steps=-1 must be >= 0"),
    ],
)
def test_refuses_schedules_without_meaning(schedule: ScheduleConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_schedule(schedule)
