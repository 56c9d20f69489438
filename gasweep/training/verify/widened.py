"""Any task in double precision, where rounding is too small to be taken for anything else."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gasweep.config.run_spec import RunSpec
from gasweep.data.index_stream import Indices
from gasweep.tasks.base import Batch, Data, MeanLoss, SummedLoss, Task
from gasweep.tasks.resolve import resolve_task

if TYPE_CHECKING:
    from torch import Tensor, nn


def widened(spec: RunSpec) -> RunSpec:
    """`spec` in fp64 and fast mode, on the same examples."""
    task = {"_target_": f"{__name__}.{WidenedTask.__name__}", "section": dict(spec.config.task)}
    config = dataclasses.replace(spec.config, task=task, precision="fp64", determinism="fast")
    return dataclasses.replace(spec, config=config)


@dataclass(frozen=True, kw_only=True)
class WidenedData(Data):
    """Another's data with floating-point tensors in float64."""

    data: Data

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: Indices) -> Batch:
        return double(self.data.batch(indices))


@dataclass(kw_only=True)
class WidenedTask(Task):
    """The task of `section`, on float64 data; the model is widened by the trainer (precision fp64)."""

    section: dict[str, Any]

    def __post_init__(self) -> None:
        self._task = resolve_task(self.section)

    def train_data(self, *, root: str | None) -> Data:
        return WidenedData(data=self._task.train_data(root=root))

    def build_model(self) -> nn.Module:
        return self._task.build_model()

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss | MeanLoss:
        return self._task.loss(model, batch)

    def eval_batches(self, *, root: str | None, batch_size: int, max_examples: int | None) -> list[Batch]:
        return self._task.eval_batches(root=root, batch_size=batch_size, max_examples=max_examples)

    def eval_sums(self, model: nn.Module, batch: Batch) -> dict[str, tuple[float, float]]:
        return self._task.eval_sums(model, batch)

    def count_items(self, batch: Batch) -> int:
        return self._task.count_items(batch)

    def items_per_example(self) -> int | None:
        return self._task.items_per_example()

    def num_tokens(self, batch: Batch) -> int | None:
        return self._task.num_tokens(batch)

    def metrics(self) -> tuple[str, ...]:
        return self._task.metrics()

    def group_losses(self, model: nn.Module, batch: Batch) -> Tensor | None:
        return self._task.group_losses(model, batch)

    def parallelize(self, model: nn.Module) -> list[nn.Module] | None:
        return self._task.parallelize(model)


def double(value: Batch) -> Batch:
    """The batch with its floating-point tensors in float64."""
    if isinstance(value, dict):
        return {key: double(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(double(item) for item in value)
    if hasattr(value, "is_floating_point") and value.is_floating_point():
        return value.double()
    return value
