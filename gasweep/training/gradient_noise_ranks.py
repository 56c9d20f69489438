"""From what every rank recorded of one optimizer step to its noise measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gasweep.analysis.noise_scale import (
    NOT_FINITE,
    NoiseMeasurement,
    NotMeasured,
    WeightedSums,
    measure_sums,
)
from gasweep.analysis.noise_scale_items import GroupSums, measure_item_groups
from gasweep.analysis.noise_scale_records import Metric
from gasweep.training.gradient_noise_check import check_final
from gasweep.training.gradient_noise_recorded import Array, Recorded, Sample

IN_PIECES = "a gradient arrived in several pieces"
UNEQUAL_SHARDED = "groups not weighed by their examples, gradients sharded"
UNEQUAL_DIVISORS = "ranks divide summed losses by different counts"

_HEADER = 11  # the numbers of a row before its metrics

Results = dict[tuple[Metric, str | None], NoiseMeasurement | NotMeasured]
AllReduce = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class StepUnits:
    """How hooked and final gradients relate to the groups' losses.

    reduction: "sum": a group's backward ran on Σ loss / divisor; "mean": on its mean loss / divisor.
    divisor: may differ between ranks; a group weighs as one over its own rank's.
    loss_scale: the further factor on every backward, no longer in the final gradient.
    rank_factor: the final gradient is this times the sum over ranks (1 / N where sync averages).
    by_items: items per example differ, so the step's gradient is a ratio (needs the recorder's sum).
    sharded: ranks own different coordinates of the final gradient.
    low_precision_sync: ranks send their gradients in 16 bits.
    """

    reduction: Literal["sum", "mean"]
    divisor: float
    loss_scale: float = 1.0
    rank_factor: float = 1.0
    by_items: bool = False
    sharded: bool = False
    low_precision_sync: bool = False


class RankTable:
    """Adds up, over ranks, one row of numbers per rank. Names, and labels that name parts, are one per
    parameter."""

    def __init__(
        self,
        *,
        names: Sequence[str],
        labels: Sequence[str] | None = None,
        rank: int = 0,
        world_size: int = 1,
        all_reduce: AllReduce | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._labels: list[str | None] = [None, *sorted(set(labels or ()))]
        self._members = [
            None if label is None else [i for i, own in enumerate(labels or ()) if own == label]
            for label in self._labels
        ]
        self._names = names
        self._rank, self._world_size = rank, world_size
        self._all_reduce, self._device = all_reduce, device

    def measure(self, recorded: Recorded, units: StepUnits, *, dataset_size: int | None = None) -> Results:
        """Collective. Raises MeasurementError, on every rank alike, when the final gradient is not what the
        groups add up to."""
        with np.errstate(over="ignore", invalid="ignore"):  # not finite: found below, on every rank alike
            row = self._row(recorded, units)
            summed = self._summed(recorded.sample, units)
        table = np.zeros((self._world_size, len(row)))
        table[self._rank] = row
        numbers = np.concatenate([summed.ravel(), table.ravel()])
        if self._all_reduce is not None and self._world_size > 1:
            numbers = self._all_reduce(torch.from_numpy(numbers).to(self._device)).cpu().numpy()
        summed, table = numbers[: summed.size].reshape(3, -1), numbers[summed.size :].reshape(table.shape)
        total, magnitude, final = summed
        sample = replace(recorded.sample, total=total, magnitude=magnitude, final=final)
        return _Table(table, sample, units, self._labels, dataset_size).results(self._names)

    def _summed(self, sample: Sample, units: StepUnits) -> Array:
        """What ranks only need the sum of; one of them shows the final gradient that all hold."""
        to_final = units.rank_factor / units.loss_scale
        shows = units.sharded or self._rank == 0
        final = sample.final if shows else np.zeros_like(sample.final)
        return np.stack([sample.total * to_final, sample.magnitude * to_final, final])

    def _row(self, recorded: Recorded, units: StepUnits) -> Array:
        # A group without items has no weight, and is no group; where items differ its examples still count.
        counts = [units.by_items or units.reduction == "mean" or g.num_items > 0 for g in recorded.groups]
        groups = [group for group, is_one in zip(recorded.groups, counts, strict=True) if is_one]
        n = np.array([float(group.num_examples) for group in groups])
        items = np.array([float(group.num_items) for group in groups])
        header = [*_sums(n, items, units), float(recorded.in_pieces), float(recorded.low_precision)]
        header.append(units.divisor if groups else 0.0)
        # |h|² into w |g|² and |s|² / n: h · to_loss is the gradient of a group's sum or of its mean.
        is_sum = units.reduction == "sum"
        to_loss = units.divisor / units.loss_scale
        to_weighted = (1.0 / np.maximum(items, 1e-300) if is_sum else np.ones_like(n)) / units.divisor
        to_group = 1.0 / n if is_sum else n
        cells = [np.array(header)]
        for squares, own_squares, finals, cross in _metrics(recorded):
            columns = np.stack(
                [
                    to_loss**2 * (to_weighted @ squares[counts]),
                    to_loss**2 * (to_group @ own_squares[counts]),
                    finals,
                    np.zeros_like(finals) if cross is None else to_loss * cross,
                ]
            )
            cells += [(columns if own is None else columns[:, own]).sum(axis=1) for own in self._members]
        return np.concatenate(cells)


def _sums(n: Array, items: Array, units: StepUnits) -> list[float]:
    """Over a rank's groups: m, n, Σ w, Σ w / n, Σ w² / n, T, Σ T / n, Σ T² / n."""
    is_sum = units.reduction == "sum"
    weight = (items if is_sum else np.ones_like(n)) / units.divisor
    counted = items if is_sum else n
    columns = [np.ones_like(n), n, weight, weight / n, weight**2 / n]
    columns += [counted, counted / n, counted**2 / n]
    return [float(column.sum()) for column in columns]


def _metrics(recorded: Recorded) -> list[tuple[Array, Array, Array, Array | None]]:
    """Per metric: squares of groups whole and on owned coordinates, of the final gradient, and the cross."""
    found = [(recorded.sq_norms, recorded.own_sq_norms, recorded.final_sq_norms, recorded.cross)]
    adam, final = recorded.adam_sq_norms, recorded.adam_final_sq_norms
    if adam is not None and final is not None:
        found.append((adam, adam, final, recorded.adam_cross))
    return found


class _Table:
    """Reads the table that all ranks now hold."""

    def __init__(
        self,
        table: Array,
        sample: Sample,
        units: StepUnits,
        labels: list[str | None],
        dataset_size: int | None,
    ) -> None:
        header, cells = np.split(table, [_HEADER], axis=1)
        self._units, self._labels, self._dataset_size = units, labels, dataset_size
        self._ranks = header.tolist()
        self._total = header.sum(axis=0).tolist()
        self._sample = sample
        self._cells = cells.reshape(len(header), -1, len(labels), 4)
        self._num_groups, self._num_examples = int(self._total[0]), int(self._total[1])
        self._to_mean = 1.0 / (units.rank_factor * self._total[2]) if self._total[2] > 0 else 0.0

    def results(self, names: Sequence[str]) -> Results:
        reason = self._reason(names)
        metrics: list[Metric] = ["plain", "adam"]
        found: Results = {}
        for number, metric in enumerate(metrics[: self._cells.shape[1]]):
            for column, label in enumerate(self._labels):
                if reason is not None:
                    found[metric, label] = NotMeasured(reason=reason)
                else:
                    found[metric, label] = self._measure(metric, self._cells[:, number, column])
        return found

    def _reason(self, names: Sequence[str]) -> str | None:
        """Why nothing can be said, or None; raises where the numbers contradict each other."""
        if self._total[8] > 0:
            return IN_PIECES
        if not (np.isfinite(self._cells).all() and np.isfinite(self._sample.final).all()):
            return NOT_FINITE
        if self._num_groups >= 2:
            check_final(
                self._sample,
                names=names,
                num_groups=self._num_groups,
                low_precision=self._total[9] > 0 or self._units.low_precision_sync,
                rank_factor=self._units.rank_factor,
            )
        return None

    def _measure(self, metric: Metric, cells: Array) -> NoiseMeasurement | NotMeasured:
        """cells: [ranks, 4], Σ w|g|², Σ |s|²/n, |final|², Σ (T/n) s · final."""
        units = self._units
        weighted, group, final, cross = cells.T
        mean_sq_norms = final * self._to_mean**2
        whole = float(mean_sq_norms.sum()) if units.sharded else float(mean_sq_norms[0])
        if not units.by_items and (metric == "plain" or not units.sharded):
            sums = WeightedSums(
                num_groups=self._num_groups,
                num_examples=self._num_examples,
                weight=self._total[2],
                weight_per_example=self._total[3],
                sq_weight_per_example=self._total[4],
                sq_norm=float(weighted.sum()),
            )
            return measure_sums(sums, mean_sq_norm=whole, dataset_size=self._dataset_size)
        if units.reduction == "mean" and not self._weighs_examples():
            return NotMeasured(reason=UNEQUAL_SHARDED)
        if units.reduction == "sum" and len({header[10] for header in self._ranks if header[0] > 0}) > 1:
            return NotMeasured(reason=UNEQUAL_DIVISORS)
        parts = [
            GroupSums(
                num_groups=int(header[0]),
                group_sq_sum=float(group[rank]),
                cross_sum=float(cross[rank]) * self._to_mean,
                item_rate_sum=header[6],
                item_sq_sum=header[7],
                mean_sq_norm=float(mean_sq_norms[rank]),
            )
            for rank, header in enumerate(self._ranks)
        ]
        return measure_item_groups(
            parts if units.sharded else [_added(parts, whole)],
            num_groups=self._num_groups,
            num_examples=self._num_examples,
            num_items=self._total[5],
            dataset_size=self._dataset_size,
        )

    def _weighs_examples(self) -> bool:
        """Whether w_i / n_i is the same for all groups: then alone are (Σ w)² and Σ n · Σ w² / n equal."""
        return math.isclose(self._total[4] * self._num_examples, self._total[2] ** 2, rel_tol=1e-9)


def _added(parts: list[GroupSums], mean_sq_norm: float) -> GroupSums:
    """Ranks that all hold the whole final gradient, as one part."""
    return GroupSums(
        num_groups=sum(part.num_groups for part in parts),
        group_sq_sum=math.fsum(part.group_sq_sum for part in parts),
        cross_sum=math.fsum(part.cross_sum for part in parts),
        item_rate_sum=math.fsum(part.item_rate_sum for part in parts),
        item_sq_sum=math.fsum(part.item_sq_sum for part in parts),
        mean_sq_norm=mean_sq_norm,
    )
