"""Evaluation on fixed batches: the same numbers whatever b, N and G are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gasweep.config.schema import EvaluationConfig
from gasweep.data.streams import derive_seed
from gasweep.errors import ConfigError, TaskError
from gasweep.tasks.base import Batch, move
from gasweep.training.parts import TrainingParts
from gasweep.training.randomness import seed_torch


class Evaluator:
    """The held-out batches, shared out over ranks; their sums are added in batch order in double precision.

    Every batch runs whole on one rank, so its sums have the same bits on any number of ranks, and adding
    them in one order keeps it so.
    """

    def __init__(self, parts: TrainingParts) -> None:
        config = parts.spec.config
        self._parts = parts
        self._metrics = parts.task.metrics()
        batches: Any = parts.task.eval_batches(
            root=config.data.root,
            batch_size=config.evaluation.batch_size,
            max_examples=config.evaluation.max_examples,
        )
        if not isinstance(batches, Sequence):
            kind = type(batches).__name__
            raise TaskError(
                f"task.eval_batches returned a {kind}; it must return a list: every run reads it anew"
            )
        if not batches:
            raise TaskError("task.eval_batches returned no batch; at least one is needed to evaluate")
        self._batches = batches

    def run(self) -> dict[str, float]:
        """Σ sum / Σ count of each metric, which may be non-finite; the model is left in training mode."""
        parts = self._parts
        parts.strategy.sync_buffers()
        sums = self._all_sums()
        parts.strategy.after_evaluation()
        parts.module.train()
        return {
            metric: _ratio(metric, sums[:, column].tolist()) for column, metric in enumerate(self._metrics)
        }

    def _all_sums(self) -> torch.Tensor:
        """(sum, count) of each metric of each batch, shape [batches, metrics, 2], on the CPU."""
        rank, world_size = self._parts.process.rank, self._parts.process.world_size
        count = len(self._batches)
        sums = torch.zeros((count, len(self._metrics), 2), dtype=torch.float64)
        self._parts.module.eval()
        # All ranks call the model equally often (FSDP gathers parameters in every call); a rank that has run
        # out repeats a batch and forgets it.
        for turn in range(math.ceil(count / world_size)):
            index = turn * world_size + rank
            row = self._batch_sums(min(index, count - 1))
            if index < count:
                sums[index] = row
        if world_size > 1:
            self._parts.strategy.all_reduce(sums)
        return sums

    def _batch_sums(self, index: int) -> torch.Tensor:
        parts = self._parts
        batch: Batch = move(self._batches[index], parts.device)
        seed_torch(derive_seed(parts.spec.seed, "evaluation", index), cuda=parts.device.type == "cuda")
        with torch.no_grad(), parts.precision.autocast():
            sums: dict[str, Any] = parts.task.eval_sums(parts.module, batch)
        if set(sums) != set(self._metrics):
            raise TaskError(
                f"task.eval_sums returned {sorted(sums)}, but task.metrics() names {sorted(self._metrics)}"
            )
        rows = [_sum_and_count(metric, sums[metric]) for metric in self._metrics]
        return torch.tensor(rows, dtype=torch.float64)


def next_evaluation(optimizer_step: int, config: EvaluationConfig) -> int:
    """The applied optimizer step to evaluate at after the one at `optimizer_step`.

    A fixed fraction of the steps taken, so that the uncertainty of steps-to-target is the same fraction at
    every batch size; a fixed number of steps would weigh most on the largest batches.
    """
    if config.every_optimizer_steps is not None:
        return optimizer_step + config.every_optimizer_steps
    # The margin keeps 20 · 0.05 from counting as more than 1.
    return optimizer_step + max(1, math.ceil(optimizer_step * config.spacing_fraction - 1e-9))


def check_evaluation(config: EvaluationConfig) -> None:
    """Raises ConfigError for a spacing or size that has no meaning."""
    if config.every_optimizer_steps is not None and config.every_optimizer_steps < 1:
        raise ConfigError(
            f"evaluation.every_optimizer_steps={config.every_optimizer_steps} must be >= 1, or null"
        )
    if not config.spacing_fraction >= 0:
        raise ConfigError(f"evaluation.spacing_fraction={config.spacing_fraction} must be >= 0")
    if config.batch_size < 1:
        raise ConfigError(f"evaluation.batch_size={config.batch_size} must be >= 1")


def _sum_and_count(metric: str, pair: Any) -> tuple[float, float]:
    try:
        total, count = pair
        return float(total), float(count)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TaskError(
            f"task.eval_sums gave {pair!r} for {metric!r}; it must give a pair of real numbers, (sum, count)"
        ) from error


def _ratio(metric: str, sums_and_counts: list[list[float]]) -> float:
    total = count = 0.0
    for batch_sum, batch_count in sums_and_counts:
        if not 0 <= batch_count < math.inf:
            raise TaskError(
                f"task.eval_sums gave count={batch_count} for {metric!r}; a count is a finite number >= 0"
            )
        total += batch_sum
        count += batch_count
    if count == 0:
        raise TaskError(f"task.eval_sums counted no item for {metric!r} over all evaluation batches")
    return total / count
