"""What `train_run` gives back: states, records, probes, errors."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from gasweep.config.run_spec import RunSpec
from gasweep.errors import ConfigError, TaskError
from gasweep.results.states import RunState
from gasweep.training.throughput import flops_report
from tests.training.ranks import run_on_ranks
from tests.training.toys import ToyRegression, toy_spec, train_toy


class Miscounting(ToyRegression):
    def count_items(self, batch: Any) -> int:
        return len(batch[0]) + 1


LONG: dict[str, Any] = {"max_optimizer_steps": 400, "learning_rate": 0.1, "layout": (8, 1, 2)}


def test_a_run_ends_at_its_hardest_target() -> None:
    result, records, evaluations = train_toy(spec=toy_spec(target={"value": [1.9, 1.8, 2.0]}, **LONG))
    assert result.state is RunState.REACHED
    assert result.reason is None
    losses = [e.metrics["eval_loss"] for e in evaluations]
    assert losses[-1] <= 1.8 < min(losses[:-1])
    assert result.optimizer_steps == records[-1].optimizer_step == evaluations[-1].optimizer_step
    assert result.evaluations == evaluations
    assert evaluations[0].optimizer_step == 0


def test_higher_may_be_better() -> None:
    target = {"value": 1.9, "mode": "max", "metric": "eval_loss"}
    result = train_toy(spec=toy_spec(target=target, **LONG))[0]
    assert (result.state, result.optimizer_steps) == (RunState.REACHED, 0)


def test_a_staying_rule_trains_on_past_the_crossing() -> None:
    first = train_toy(spec=toy_spec(target={"value": 1.85}, **LONG))[0]
    target = {"value": 1.85, "rule": "stays_below", "window_fraction": 0.5}
    stayed = train_toy(spec=toy_spec(target=target, **LONG))[0]
    assert first.state is stayed.state is RunState.REACHED
    assert stayed.optimizer_steps >= 1.5 * first.optimizer_steps - 1


def test_a_budget_in_steps_and_in_examples_censors() -> None:
    by_steps = train_toy(spec=toy_spec(target={"value": 0.0}, max_optimizer_steps=7))[0]
    assert (by_steps.state, by_steps.optimizer_steps) == (RunState.CENSORED, 7)
    assert "budget.max_optimizer_steps=7" in by_steps.reason
    spec = toy_spec(target={"value": 0.0}, budget={"max_examples": 61, "max_optimizer_steps": None})
    by_examples = train_toy(spec=spec)[0]
    assert (by_examples.contributions, by_examples.optimizer_steps) == (56, 7)
    assert by_examples.evaluations[-1].optimizer_step == 7


def test_a_run_without_target_trains_out_its_budget() -> None:
    result = train_toy(spec=toy_spec())[0]
    assert result.state is RunState.CENSORED
    assert "target.value is null" in result.reason


def test_a_run_that_could_never_end_is_refused() -> None:
    spec = toy_spec(budget={"max_examples": None, "max_optimizer_steps": None})
    with pytest.raises(ConfigError, match="both null"):
        train_toy(spec=spec)


def test_records_are_complete_and_hold_no_nan() -> None:
    _, records, _ = train_toy(spec=toy_spec(layout=(4, 1, 2), optimizer={"max_grad_norm": 1.0}))
    assert [r.optimizer_step for r in records] == list(range(1, 11))
    assert [r.contributions for r in records] == [8 * n for n in range(1, 11)]
    for record in records:
        values = [v for v in dataclasses.asdict(record).values() if isinstance(v, float)]
        assert all(math.isfinite(value) for value in values)
        assert record.grad_norm > 0
        assert record.seconds > 0
        assert record.examples_per_s == pytest.approx(8 / record.seconds)


def test_records_may_be_thinned() -> None:
    records = train_toy(spec=toy_spec(tracking={"every_optimizer_steps": 4}))[1]
    assert [r.optimizer_step for r in records] == [4, 8]


def test_loss_is_per_item_over_the_effective_batch() -> None:
    """At learning rate 0 the losses of an epoch's steps average to the evaluation loss."""
    spec = toy_spec(layout=(4, 1, 2), learning_rate=0.0, max_optimizer_steps=8)
    _, records, evaluations = train_toy(spec=spec)
    mean = sum(r.loss for r in records) / 8
    assert mean == pytest.approx(evaluations[0].metrics["eval_loss"], rel=1e-6)


@pytest.mark.multiprocess
def test_only_rank_0_gives_a_result_and_records() -> None:
    first, second = run_on_ranks(2, train_toy, spec=toy_spec(layout=(4, 2, 1)))
    assert first[0] is not None
    assert len(first[1]) == 10
    assert second == (None, [], [])


@pytest.mark.multiprocess
def test_the_hash_does_not_depend_on_how_parameters_are_laid_out() -> None:
    """One rank, two replicas and two shards of the initial model, which a rate of 0 leaves alone."""
    common: dict[str, Any] = {"learning_rate": 0.0, "max_optimizer_steps": 1}
    hashes = {train_toy(spec=toy_spec(layout=(4, 1, 2), **common))[0].parameter_sha256}
    for strategy in ("ddp", "fsdp"):
        spec = toy_spec(layout=(4, 2, 1), strategy=strategy, **common)
        hashes.add(run_on_ranks(2, train_toy, spec=spec)[0][0].parameter_sha256)
    assert len(hashes) == 1


def test_a_result_is_json() -> None:
    result = train_toy(spec=toy_spec())[0]
    text = json.dumps(dataclasses.asdict(result), allow_nan=False)
    assert json.loads(text)["layout"] == {
        "micro_batch_size": 4,
        "world_size": 1,
        "accumulation_steps": 2,
    }
    assert result.environment.num_threads >= 1
    assert {"python", "torch", "numpy", "gasweep"} <= set(result.environment.versions)
    assert result.extra["optimizer_implementation"] == "foreach"


def test_a_spec_rebuilt_from_json_gives_the_same_run() -> None:
    spec = toy_spec(optimizer={"name": "adamw"})
    rebuilt = RunSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert train_toy(spec=rebuilt)[0].parameter_sha256 == train_toy(spec=spec)[0].parameter_sha256


PROBE: dict[str, Any] = {"probe_optimizer_steps": 6, "probe_warmup_optimizer_steps": 2}


def test_a_probe_times_steps_and_evaluates_nothing() -> None:
    result, records, evaluations = train_toy(spec=toy_spec(kind="probe", sweep=PROBE))
    assert result.state is RunState.REACHED
    assert (result.optimizer_steps, len(records), evaluations) == (8, 8, [])
    throughput = result.throughput
    assert throughput.num_timed_optimizer_steps == 6
    low, high = throughput.seconds_per_optimizer_step_low, throughput.seconds_per_optimizer_step_high
    assert 0 < low <= throughput.seconds_per_optimizer_step <= high
    assert throughput.examples_per_s == pytest.approx(8 / throughput.seconds_per_optimizer_step_mean)
    assert throughput.peak_memory_bytes > 10**7
    assert result.parameter_sha256 is None


@pytest.mark.multiprocess
def test_a_probe_reports_traffic_and_what_no_sync_saved() -> None:
    spec = toy_spec(kind="probe", layout=(2, 2, 4), sweep=PROBE)
    result = run_on_ranks(2, train_toy, spec=spec)[0][0]
    throughput = result.throughput
    assert throughput.collectives_per_optimizer_step == {"all_reduce": 1}
    assert throughput.bytes_per_optimizer_step_unsaved == 4 * throughput.bytes_per_optimizer_step > 0
    assert 0 < throughput.control_bytes_per_optimizer_step < 100
    model, *control = throughput.communication
    assert (model.collective, model.dtype, model.group, model.num_ranks) == (
        "all_reduce",
        "float32",
        "data",
        2,
    )
    assert (model.calls, model.num_bytes) == (1, throughput.bytes_per_optimizer_step)
    assert all(sent.control for sent in control)
    assert sum(sent.num_bytes for sent in control) == throughput.control_bytes_per_optimizer_step


@pytest.mark.multiprocess
@pytest.mark.parametrize("every", [1, 2])
def test_a_runs_traffic_is_a_plain_steps_where_there_was_one(every: int) -> None:
    """Measuring the gradient noise talks too: that is no part of what a step costs."""
    noise = {"enabled": True, "every_optimizer_steps": every}
    layout = {"layout": (2, 2, 4), "max_optimizer_steps": 12}
    measured = run_on_ranks(2, train_toy, spec=toy_spec(noise_scale=noise, **layout))[0][0].throughput
    plain = run_on_ranks(2, train_toy, spec=toy_spec(**layout))[0][0].throughput
    assert measured.bytes_per_optimizer_step == plain.bytes_per_optimizer_step > 0
    same = measured.control_bytes_per_optimizer_step == plain.control_bytes_per_optimizer_step
    assert same is (every > 1)


@pytest.mark.multiprocess
def test_counts_are_agreed_only_where_they_can_differ() -> None:
    """One small all-reduce more per step for tasks whose items must be counted."""
    known, counted = (
        run_on_ranks(2, train_toy, spec=toy_spec(kind="probe", layout=(2, 2, 4), sweep=PROBE, task=task))[0]
        for task in ("ToyRegression", "ToyTokens")
    )
    difference = (
        counted[0].throughput.control_bytes_per_optimizer_step
        - known[0].throughput.control_bytes_per_optimizer_step
    )
    assert difference == 8


def test_a_probe_of_no_step_is_refused() -> None:
    spec = toy_spec(kind="probe", sweep={"probe_optimizer_steps": 0})
    with pytest.raises(ConfigError, match="probe_optimizer_steps=0 must be >= 1"):
        train_toy(spec=spec)


def test_c48_flops_count_every_micro_step_and_rank_once() -> None:
    """P=1e6, b=2, 64 tokens, G=4, N=2, 1 s per update: 6.144e9 FLOP/s together, 3.072e9 per device."""
    import types

    parameters = [types.SimpleNamespace(numel=lambda: 1_000_000)]
    trainer: Any = types.SimpleNamespace(
        parts=types.SimpleNamespace(
            task=types.SimpleNamespace(flops_per_example=lambda module: None),
            module=types.SimpleNamespace(parameters=lambda: parameters),
            process=types.SimpleNamespace(world_size=2),
            precision=types.SimpleNamespace(name="bf16"),
        )
    )
    throughput: Any = types.SimpleNamespace(examples_per_s=2 * 4 * 2 / 1.0, tokens_per_s=1024.0)
    report = flops_report(trainer, throughput, device_name="NVIDIA H100 80GB HBM3")
    assert report["model_flops_per_s_per_rank"] == pytest.approx(3.072e9)
    assert report["mfu"] == pytest.approx(3.072e9 / 989e12)
    assert flops_report(trainer, throughput, device_name="cpu")["mfu"] is None


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"precision": "fp8"}, ConfigError, "precision='fp8'"),
        ({"determinism": "exact"}, ConfigError, "determinism='exact'"),
        ({"kind": "warmup"}, ConfigError, "kind='warmup'"),
        ({"strategy": "dpp", "layout": (4, 1, 1)}, ConfigError, "strategy='dpp'"),
        ({"data": {"sampling": "random"}}, ConfigError, "data.sampling='random'"),
        (
            {"strategy_options": {"activation_checkpointing": True}, "task": "ToyBranches"},
            ConfigError,
            "names none",
        ),
    ],
)
def test_wrong_input_is_one_line(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        train_toy(spec=toy_spec(**changes))
    assert "\n" not in str(caught.value)


def test_a_run_on_other_than_its_ranks_is_refused() -> None:
    from gasweep.training import ProcessContext, train_run

    with pytest.raises(ConfigError, match="world_size=2 of run toy does not match the 1 processes"):
        train_run(
            toy_spec(layout=(4, 2, 1)),
            process=ProcessContext(),
            sink=lambda **_: None,
            run_directory=None,
            should_stop=lambda: False,
        )


def test_a_layout_that_does_not_make_its_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match="accumulation_steps=2"):
        train_toy(spec=toy_spec(layout=(4, 1, 2), effective_batch_size=24))


def test_a_task_that_counts_differently_than_it_sums_is_refused() -> None:
    spec = toy_spec()
    spec.config.task["_target_"] = "tests.training.test_run.Miscounting"
    with pytest.raises(TaskError, match=r"summed num_items=4 but task.count_items said 5"):
        train_toy(spec=spec)


def test_reading_steps_together_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does, forced here: rank 0 asks for reads every 5 steps; records and ends stay the same."""
    from gasweep.training.advance import Stepper
    from gasweep.training.agreement import Decision

    def ends() -> list[Any]:
        diverging = toy_spec(
            learning_rate=1e4, max_optimizer_steps=40, evaluation={"every_optimizer_steps": 20}
        )
        found = [train_toy(spec=spec) for spec in (toy_spec(max_optimizer_steps=23), diverging)]
        return [
            (
                result.state,
                result.reason,
                result.optimizer_steps,
                result.contributions,
                result.evaluations,
                [(r.optimizer_step, r.loss, r.learning_rate, r.contributions) for r in steps],
            )
            for result, steps, _ in found
        ]

    one_by_one = ends()
    decide = Stepper._decide

    def seldom(self: Stepper, is_read: bool) -> Decision:
        return dataclasses.replace(decide(self, is_read), next_read_in=5)

    monkeypatch.setattr(Stepper, "_decide", seldom)
    assert ends() == one_by_one
    assert one_by_one[1][0] is RunState.DIVERGED
