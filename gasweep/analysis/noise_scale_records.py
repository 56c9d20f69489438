"""How noise measurements are named in step records, so that what writes them and what reads them agree.

grad_sq_norm, grad_noise_trace                the plain noise scale's two parts, signed
adam_grad_sq_norm, adam_grad_noise_trace      the same in Adam's own metric
.../<label>                                   of one parameter group
noise_num_groups, noise_num_examples          m and n of the step
noise_left_out/<reason>                       1: the step was due but said nothing
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

from gasweep.analysis.noise_scale import NoiseMeasurement, NotMeasured
from gasweep.errors import MeasurementError

Metric = Literal["plain", "adam"]

_LEFT_OUT = "noise_left_out/"
_NUM_GROUPS, _NUM_EXAMPLES = "noise_num_groups", "noise_num_examples"


class StepLike(Protocol):
    """What a step record offers, e.g. `gasweep.results.records.StepRecord`."""

    @property
    def optimizer_step(self) -> int: ...
    @property
    def contributions(self) -> int: ...
    @property
    def loss(self) -> float | None: ...
    @property
    def extra(self) -> Mapping[str, Any]: ...


def noise_fields(
    measurement: NoiseMeasurement | NotMeasured, *, metric: Metric = "plain", label: str | None = None
) -> dict[str, float]:
    """What a step record's `extra` holds for one measurement."""
    if isinstance(measurement, NotMeasured):
        return {_LEFT_OUT + measurement.reason: 1.0}
    sq_norm, trace = _names(metric, label)
    return {
        sq_norm: measurement.grad_sq_norm,
        trace: measurement.grad_noise_trace,
        _NUM_GROUPS: float(measurement.num_groups),
        _NUM_EXAMPLES: float(measurement.num_examples),
    }


def noise_measurements(
    records: Iterable[StepLike], *, metric: Metric = "plain", label: str | None = None
) -> list[NoiseMeasurement | NotMeasured]:
    """The measurements that a run's step records hold, in their order; steps that were not due are skipped.

    metric, label: which of the measurements a step may hold; see `noise_labels`.

    Raises MeasurementError for a record that lacks its counts or holds anything not finite.
    """
    found: list[NoiseMeasurement | NotMeasured] = []
    sq_norm, trace = _names(metric, label)
    for record in records:
        extra = record.extra
        if sq_norm in extra and trace in extra:
            for name in (_NUM_GROUPS, _NUM_EXAMPLES):
                if name not in extra:
                    raise MeasurementError(
                        f"the record of optimizer_step={record.optimizer_step} lacks {name}"
                    )
            found.append(
                NoiseMeasurement(
                    grad_sq_norm=float(extra[sq_norm]),
                    grad_noise_trace=float(extra[trace]),
                    num_groups=int(extra[_NUM_GROUPS]),
                    num_examples=int(extra[_NUM_EXAMPLES]),
                    optimizer_step=record.optimizer_step,
                    contributions=record.contributions,
                    loss=record.loss,
                )
            )
            continue
        for key in extra:
            if key.startswith(_LEFT_OUT):
                reason = key.removeprefix(_LEFT_OUT)
                found.append(NotMeasured(reason=reason, optimizer_step=record.optimizer_step))
    return found


def noise_labels(records: Iterable[StepLike]) -> list[str]:
    """The parameter groups that the records hold measurements of, sorted."""
    prefix = "grad_sq_norm/"
    return sorted({key.removeprefix(prefix) for r in records for key in r.extra if key.startswith(prefix)})


def _names(metric: Metric, label: str | None) -> tuple[str, str]:
    start = "" if metric == "plain" else f"{metric}_"
    end = "" if label is None else f"/{label}"
    return f"{start}grad_sq_norm{end}", f"{start}grad_noise_trace{end}"
