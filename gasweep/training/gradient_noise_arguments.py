"""What `GradientNoiseScale` can be asked for, and one line for what it cannot."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gasweep.analysis.noise_scale_checks import require_whole
from gasweep.errors import MeasurementError
from gasweep.training.gradient_noise_recorded import Group


def check_arguments(
    *,
    micro_batch_size: int | None,
    loss_reduction: str,
    items_differ: bool,
    dataset_size: int | None,
    optimizer: torch.optim.Optimizer | None,
) -> None:
    """Raises ValueError for arguments that do not fit together."""
    if loss_reduction not in ("mean", "sum"):
        raise ValueError(f"loss_reduction={loss_reduction!r} must be 'mean' or 'sum'")
    if items_differ and loss_reduction != "sum":
        raise ValueError("items_differ=True needs loss_reduction='sum': a mean of means weighs groups alike")
    if micro_batch_size is not None:
        require_whole("micro_batch_size", micro_batch_size, at_least=1)
    if dataset_size is not None:
        require_whole("dataset_size", dataset_size, at_least=1)
    if optimizer is not None and not all("betas" in group for group in optimizer.param_groups):
        raise ValueError(
            f"optimizer={type(optimizer).__name__}: only an Adam has second moments to measure by"
        )


def check_asked(
    metric: str, label: str | None, *, labels: Sequence[str], optimizer: torch.optim.Optimizer | None
) -> None:
    """Raises ValueError for a metric or label that is not measured, which would look like no measurement."""
    if metric not in ("plain", "adam"):
        raise ValueError(f"metric={metric!r} must be 'plain' or 'adam'")
    if metric == "adam" and optimizer is None:
        raise ValueError("metric='adam' needs GradientNoiseScale(optimizer=...)")
    if label is not None and label not in labels:
        known = ", ".join(sorted(set(labels))) or "none without parameter_group"
        raise ValueError(f"label={label!r} is not measured; labels: {known}")


def group_of(num_examples: int, num_items: float | None, *, reduction: str, by_items: bool) -> Group:
    """Raises MeasurementError where items matter and are not given."""
    if by_items and num_items is None:
        raise MeasurementError("num_items=None: items_differ=True needs `group(num_items=...)`")
    items = float(num_examples if num_items is None else num_items)
    if reduction == "mean":
        weight = float(num_examples)
    else:
        weight = items / num_examples if num_examples else 0.0
    return Group(num_examples=num_examples, num_items=items, cross_weight=weight)
