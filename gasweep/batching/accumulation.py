"""The accumulation primitive: what to do in each micro-step of one optimizer step.

Framework-neutral: it decides *when* to zero, sync and step and *what to divide by*; the caller's train step
does it. The trainer, `run_accumulated_step` and `run_training_steps` all read the same object.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from gasweep.batching.arithmetic import require_positive_int
from gasweep.errors import BatchError, ConfigError

Batch = TypeVar("Batch")
Result = TypeVar("Result")


class TrainStepKwargs(TypedDict):
    """Keyword arguments of one micro-step's train step."""

    zero_grad: bool
    sync_gradients: bool
    step_optimizer: bool
    loss_divisor: float
    collect_metrics: bool


@dataclass(frozen=True)
class GradientAccumulation:
    """Accumulate gradients over `steps` micro-batches before each optimizer step.

    `steps` is G, the number of micro-batches per rank per optimizer step: at least 1, never G-1 and never
    divided by the world size. Raises BatchError (a ValueError) for anything but a whole number >= 1.

    >>> GradientAccumulation(steps=2).train_step_kwargs(1)["step_optimizer"]
    True
    """

    steps: int = 1

    def __post_init__(self) -> None:
        require_positive_int(self.steps, field="accumulation_steps")

    @classmethod
    def from_config(cls, cfg: object, key: str = "gradient_accumulation_steps") -> GradientAccumulation:
        """Read G from a mapping, an OmegaConf node or an object with an attribute `key`; absent means 1.

        `key` may be dotted. A present value must be a whole number >= 1: None, 2.0, "4" and True raise
        ConfigError, naming the key.
        """
        value: Any = cfg
        for part in key.split("."):
            if isinstance(value, Mapping) or hasattr(value, "keys"):
                if part not in value:
                    return cls(steps=1)
                value = value[part]
            elif hasattr(value, part):
                value = getattr(value, part)
            else:
                return cls(steps=1)
        return cls(steps=require_positive_int(value, field=key, error=ConfigError))

    @property
    def enabled(self) -> bool:
        """Whether more than one micro-batch makes an optimizer step."""
        return self.steps > 1

    def is_first(self, micro_step: int) -> bool:
        """Whether `micro_step`, counted from 0 over the whole run, opens an optimizer step."""
        return _micro_step(micro_step) % self.steps == 0

    def is_last(self, micro_step: int) -> bool:
        """Whether `micro_step`, counted from 0 over the whole run, closes an optimizer step."""
        return _micro_step(micro_step) % self.steps == self.steps - 1

    def train_step_kwargs(self, micro_step: int, *, counts: Sequence[float] | None = None) -> TrainStepKwargs:
        """What the train step of `micro_step` must do.

        `loss_divisor` is `steps` by default: right for a *mean* loss over groups of equal size. With
        `counts`, the items of every group of the optimizer step over all ranks, it is their sum: right for a
        *summed* loss whatever the sizes. If no group holds an item the divisor is 1 (the summed loss is 0).
        An averaging all-reduce (DDP) additionally divides by N; whoever syncs must undo that.
        """
        last = self.is_last(micro_step)
        return TrainStepKwargs(
            zero_grad=self.is_first(micro_step),
            sync_gradients=last,
            step_optimizer=last,
            loss_divisor=float(self.steps) if counts is None else _total_count(counts),
            collect_metrics=last,
        )


def run_accumulated_step(
    train_step: Callable[..., Result],
    micro_batches: Iterable[Batch],
    accumulation: GradientAccumulation | None = None,
    *,
    counts: Sequence[float] | None = None,
    no_sync: Callable[[], AbstractContextManager[object]] | None = None,
) -> list[Result]:
    """One optimizer step: calls `train_step(micro_batch, **kwargs)` for each micro-batch, in order.

    micro_batches: the groups of this step on this rank. Fewer than `accumulation.steps` is a short last
        group window (the end of an epoch): everything, the divisor included, follows the true number.
    counts: see `GradientAccumulation.train_step_kwargs`; the items of every group over *all* ranks.
    no_sync: e.g. `ddp_model.no_sync`; entered around the whole train step (forward included: DDP decides in
        the forward) of every micro-batch but the last.

    Returns what each call returned. Raises BatchError when there is no micro-batch, or more than `steps`.
    """
    groups = list(micro_batches)
    if not groups:
        raise BatchError("micro_batches is empty: an optimizer step needs at least one micro-batch")
    if accumulation is not None and len(groups) > accumulation.steps:
        raise BatchError(
            f"micro_batches holds {len(groups)} groups, more than accumulation_steps={accumulation.steps}"
        )
    window = GradientAccumulation(steps=len(groups))
    results = []
    for micro_step, group in enumerate(groups):
        kwargs = window.train_step_kwargs(micro_step, counts=counts)
        hold = no_sync is not None and not kwargs["sync_gradients"]
        with no_sync() if hold and no_sync is not None else contextlib.nullcontext():
            results.append(train_step(group, **kwargs))
    return results


def run_training_steps(
    train_step: Callable[..., Result],
    micro_batches: Iterable[Batch],
    accumulation: GradientAccumulation,
    *,
    num_optimizer_steps: int | None = None,
    count_items: Callable[[list[Batch]], Sequence[float]] | None = None,
    no_sync: Callable[[], AbstractContextManager[object]] | None = None,
    on_optimizer_step: Callable[[int, list[Result]], object] | None = None,
) -> int:
    """Optimizer steps over a stream of micro-batches; returns how many were made.

    Stops after `num_optimizer_steps`, or when the stream ends; a short last window is one exact optimizer
    step of its own (never dropped, never divided by G, never leaked into the next pass).

    count_items: given the window's groups, the items of each over all ranks (see `counts` above).
    on_optimizer_step: called with the number of optimizer steps made and that step's results.
    """
    stream = iter(micro_batches)
    done = 0
    while num_optimizer_steps is None or done < num_optimizer_steps:
        window = list(itertools.islice(stream, accumulation.steps))
        if not window:
            break
        counts = None if count_items is None else count_items(window)
        results = run_accumulated_step(train_step, window, accumulation, counts=counts, no_sync=no_sync)
        done += 1
        if on_optimizer_step is not None:
            on_optimizer_step(done, results)
    return done


def _micro_step(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BatchError(f"micro_step={value!r} must be a whole number >= 0")
    return value


def _total_count(counts: Sequence[float]) -> float:
    if any(count < 0 for count in counts):
        raise BatchError(f"counts={list(counts)!r} must all be >= 0")
    return float(sum(counts)) or 1.0
