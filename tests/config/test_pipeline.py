"""A config that stacks a pipeline on accumulation is refused, and told that they are the same thing."""

import pytest

from gasweep.config.load import parse_sweep_config
from gasweep.config.pipeline import refuse_pipeline
from gasweep.errors import RefusedError

CONFIG = {
    "task": {"_target_": "gasweep.tasks.Digits"},
    "grid": {"micro_batch_size": [4], "accumulation_steps": [1, 8], "learning_rate": [0.1]},
    "target": {"value": 0.5},
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"strategy": "pipeline"}, "strategy='pipeline'"),
        ({"strategy_options": {"pipeline_stages": 4}}, "strategy_options.pipeline_stages=4"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2"),
        ({"pp": {"stages": 2}}, "pp={'stages': 2}"),
    ],
)
def test_stacking_is_refused_with_the_explanation(change, named):
    with pytest.raises(RefusedError) as error:
        parse_sweep_config({**CONFIG, **change})
    message = str(error.value)
    assert message.startswith(f"{named} cannot be combined with accumulation_steps: ")
    assert "micro-batches are the accumulation" in message
    assert "\n" not in message


def test_an_override_can_ask_for_it_too():
    with pytest.raises(RefusedError, match=r"^strategy='1f1b' cannot be combined"):
        parse_sweep_config(CONFIG, ["strategy=1f1b"])
    with pytest.raises(RefusedError, match=r"^grid.pp_size=\[2\] cannot be combined"):
        parse_sweep_config(CONFIG, ["grid.pp_size=[2]"])


def test_a_pipeline_alone_is_told_how_its_numbers_are_read():
    alone = {**CONFIG, "strategy": "gpipe", "grid": {"micro_batch_size": [4], "learning_rate": [0.1]}}
    with pytest.raises(RefusedError, match=r"^strategy='gpipe' is not run by gasweep; .* as your schedule's"):
        parse_sweep_config(alone)


@pytest.mark.parametrize("change", [{}, {"pp": None}, {"pipeline": False}, {"pp_size": 1}])
def test_one_stage_or_none_is_no_pipeline(change):
    refuse_pipeline({**CONFIG, **change})
