from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from gasweep.config.schema import EvaluationConfig
from gasweep.errors import ConfigError, TaskError
from gasweep.training.evaluate import check_evaluation, next_evaluation
from tests.training.ranks import run_on_ranks
from tests.training.toys import ToyRegression, toy_spec, train_toy


class NothingToEvaluate(ToyRegression):
    def eval_batches(self, *, root: str | None, batch_size: int, max_examples: int | None) -> list[Any]:
        return []


class EvaluatesOnce(ToyRegression):
    def eval_batches(self, *, root: str | None, batch_size: int, max_examples: int | None) -> Any:
        return iter(super().eval_batches(root=root, batch_size=batch_size, max_examples=max_examples))


@dataclass(kw_only=True)
class OddSums(ToyRegression):
    pair: str = "1.0"

    def eval_sums(self, model: Any, batch: Any) -> Any:
        values = {"number": 1.0, "complex": (1j, 2.0), "none": (None, 1.0), "vector": (torch.ones(2), 1.0)}
        return dict.fromkeys(self.metrics(), values[self.pair])


class CountsWithoutEnd(ToyRegression):
    def eval_sums(self, model: Any, batch: Any) -> dict[str, tuple[float, float]]:
        return {name: (1.0, float("inf")) for name in self.metrics()}


def evaluated_steps(config: EvaluationConfig, last: int) -> list[int]:
    steps = [0]
    while steps[-1] < last:
        steps.append(next_evaluation(steps[-1], config))
    return steps


def test_spacing_is_a_fraction_of_the_steps_taken() -> None:
    steps = evaluated_steps(EvaluationConfig(spacing_fraction=0.05), 10_000)
    assert steps[:22] == [*range(21), 21]
    for before, after in itertools.pairwise(steps):
        assert after - before <= max(1, 0.05 * before + 1)
    assert len(steps) < 170


def test_spacing_is_exact_where_the_fraction_is() -> None:
    assert next_evaluation(20, EvaluationConfig(spacing_fraction=0.05)) == 21
    assert next_evaluation(100, EvaluationConfig(spacing_fraction=0.1)) == 110
    assert next_evaluation(100, EvaluationConfig(spacing_fraction=0.0)) == 101


def test_a_fixed_spacing() -> None:
    assert evaluated_steps(EvaluationConfig(every_optimizer_steps=4), 9) == [0, 4, 8, 12]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EvaluationConfig(every_optimizer_steps=0), "every_optimizer_steps=0 must be >= 1, or null"),
        (EvaluationConfig(spacing_fraction=-0.1), "spacing_fraction=-0.1 must be >= 0"),
        (EvaluationConfig(batch_size=0), "batch_size=0 must be >= 1"),
    ],
)
def test_refuses_what_has_no_meaning(config: EvaluationConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_evaluation(config)


def first_evaluation(rank: int = 0, *, spec: Any) -> dict[str, float]:
    evaluations = train_toy(rank, spec=spec)[2]
    return dict(evaluations[0].metrics) if rank == 0 else {}


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_evaluation_does_not_depend_on_the_layout(strategy: str) -> None:
    """7 batches on 1, 2 and 3 ranks (the last ones unevenly): the same bits."""
    common: dict[str, Any] = {"max_optimizer_steps": 1, "evaluation": {"batch_size": 10}}
    alone = first_evaluation(spec=toy_spec(layout=(6, 1, 2), **common))
    for layout in ((3, 2, 2), (2, 3, 2)):
        spec = toy_spec(layout=layout, strategy=strategy, **common)
        assert run_on_ranks(layout[1], first_evaluation, spec=spec)[0] == alone


def test_dropout_is_off_and_training_goes_on_with_it() -> None:
    common: dict[str, Any] = {"max_optimizer_steps": 2}
    plain = first_evaluation(spec=toy_spec(**common))
    with_dropout = first_evaluation(spec=toy_spec(arguments={"dropout": 0.5}, **common))
    assert plain == with_dropout
    trained = [
        train_toy(spec=toy_spec(arguments={"dropout": p}, **common))[0].parameter_sha256 for p in (0.0, 0.5)
    ]
    assert trained[0] != trained[1]


def test_a_limit_on_examples() -> None:
    limited = toy_spec(evaluation={"max_examples": 16, "batch_size": 4}, max_optimizer_steps=1)
    whole = toy_spec(evaluation={"batch_size": 4}, max_optimizer_steps=1)
    assert first_evaluation(spec=limited) != first_evaluation(spec=whole)


def test_a_metric_that_the_task_does_not_evaluate_is_refused() -> None:
    spec = toy_spec(target={"metric": "eval_los", "value": 1.0})
    with pytest.raises(ConfigError, match="did you mean 'eval_loss'"):
        train_toy(spec=spec)


def test_a_task_without_evaluation_batches_is_refused() -> None:
    spec = toy_spec(arguments={"num_examples": 4}, evaluation={"max_examples": 4})
    spec.config.task["_target_"] = "tests.training.test_evaluate.NothingToEvaluate"
    with pytest.raises(TaskError, match="returned no batch"):
        train_toy(spec=spec)


def test_an_infinite_count_is_no_loss_of_zero() -> None:
    spec = toy_spec(max_optimizer_steps=1)
    spec.config.task["_target_"] = "tests.training.test_evaluate.CountsWithoutEnd"
    with pytest.raises(TaskError, match="count=inf for 'eval_loss'; a count is a finite number >= 0"):
        train_toy(spec=spec)


def test_batches_that_can_be_read_once_only_are_refused() -> None:
    spec = toy_spec(max_optimizer_steps=1)
    spec.config.task["_target_"] = "tests.training.test_evaluate.EvaluatesOnce"
    with pytest.raises(TaskError, match="eval_batches returned a list_iterator; it must return a list"):
        train_toy(spec=spec)


@pytest.mark.parametrize("pair", ["number", "complex", "none", "vector"])
def test_sums_are_pairs_of_real_numbers(pair: str) -> None:
    spec = toy_spec(arguments={"pair": pair}, max_optimizer_steps=1)
    spec.config.task["_target_"] = "tests.training.test_evaluate.OddSums"
    with pytest.raises(
        TaskError, match=r"for 'eval_loss'; it must give a pair of real numbers, \(sum, count\)"
    ):
        train_toy(spec=spec)
