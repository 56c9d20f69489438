"""Small tasks with known arithmetic, and run specs to train them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.tasks.base import Batch, Data, MeanLoss, SummedLoss, Task
from gasweep.training import ProcessContext, train_run
from gasweep.training.advance import Stepper
from gasweep.training.build import build_trainer
from gasweep.training.meter import StepTraffic
from gasweep.training.progress import RunProgress


@dataclass(frozen=True, kw_only=True)
class ToyData(Data):
    tensors: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batch(self, indices: np.ndarray[Any, Any]) -> Batch:
        picked = torch.from_numpy(indices)
        return tuple(tensor[picked] for tensor in self.tensors)


@dataclass(kw_only=True)
class ToyRegression(Task):
    """A two-layer network fitting noise: squared error, one item per example."""

    num_examples: int = 64
    width: int = 8
    dtype: str = "float32"
    dropout: float = 0.0
    batch_norm: bool = False
    mean: bool = False

    def train_data(self, *, root: str | None) -> Data:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(self.num_examples, 5, generator=generator, dtype=torch.float64)
        y = torch.randn(self.num_examples, 2, generator=generator, dtype=torch.float64)
        dtype = getattr(torch, self.dtype)
        return ToyData(tensors=(x.to(dtype), y.to(dtype)))

    def build_model(self) -> nn.Module:
        layers: list[nn.Module] = [nn.Linear(5, self.width)]
        if self.batch_norm:
            layers.append(nn.BatchNorm1d(self.width))
        layers += [nn.Tanh(), nn.Dropout(self.dropout), nn.Linear(self.width, 2)]
        return nn.Sequential(*layers).to(getattr(torch, self.dtype))

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss | MeanLoss:
        x, y = batch
        errors = (model(x) - y).square().sum(dim=1)
        if self.mean:
            return MeanLoss(mean=errors.mean(), num_items=len(x))
        return SummedLoss(total=errors.sum(), num_items=len(x))

    def eval_batches(self, *, root: str | None, batch_size: int, max_examples: int | None) -> list[Batch]:
        data = self.train_data(root=root)
        count = min(len(data), max_examples or len(data))
        return [
            data.batch(np.arange(start, min(start + batch_size, count)))
            for start in range(0, count, batch_size)
        ]

    def eval_sums(self, model: nn.Module, batch: Batch) -> dict[str, tuple[float, float]]:
        x, y = batch
        return {"eval_loss": (float((model(x) - y).square().sum()), float(len(x)))}

    def parallelize(self, model: nn.Module) -> list[nn.Module] | None:
        return [module for module in model.modules() if isinstance(module, nn.Linear)]


@dataclass(kw_only=True)
class ToyTokens(ToyRegression):
    """Each row has 3 tokens, of which a fixed number from 0 to 3 are valid: counts differ, some are 0."""

    none_valid: bool = False

    def train_data(self, *, root: str | None) -> Data:
        data = super().train_data(root=root)
        assert isinstance(data, ToyData)
        x, _ = data.tensors
        generator = torch.Generator().manual_seed(2)
        targets = torch.randint(0, 2, (len(x), 3), generator=generator)
        valid = torch.arange(3) < torch.randint(0, 4, (len(x), 1), generator=generator)
        if self.none_valid:
            valid = torch.zeros_like(valid)
        return ToyData(tensors=(x, torch.where(valid, targets, -100)))

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, self.width), nn.Tanh(), nn.Linear(self.width, 6)).to(
            getattr(torch, self.dtype)
        )

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss | MeanLoss:
        x, targets = batch
        logits = model(x).view(len(x), 2, 3)
        if self.mean:
            mean = nn.functional.cross_entropy(logits, targets)
            return MeanLoss(mean=mean, num_items=self.count_items(batch))
        total = nn.functional.cross_entropy(logits, targets, reduction="sum")
        return SummedLoss(total=total, num_items=self.count_items(batch))

    def eval_sums(self, model: nn.Module, batch: Batch) -> dict[str, tuple[float, float]]:
        x, targets = batch
        logits = model(x).view(len(x), 2, 3)
        total = nn.functional.cross_entropy(logits, targets, reduction="sum")
        return {"eval_loss": (float(total), float(max(self.count_items(batch), 1)))}

    def count_items(self, batch: Batch) -> int:
        return int((batch[1] >= 0).sum())


class Branches(nn.Module):
    """Even groups take one branch, odd ones the other, as the batch's first value says."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Linear(5, 4)
        self.even = nn.Linear(4, 2)
        self.odd = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.common(x[:, 1:]))
        is_even = (x[:, :1] > 0).all()
        is_odd = (x[:, :1] <= 0).all()
        if is_even and not is_odd:
            return self.even(hidden)  # type: ignore[no-any-return]
        if is_odd and not is_even:
            return self.odd(hidden)  # type: ignore[no-any-return]
        return torch.where(x[:, :1] > 0, self.even(hidden), self.odd(hidden))


@dataclass(kw_only=True)
class ToyBranches(ToyRegression):
    """Which parameters a group uses depends on its examples."""

    shard_branches: bool = False

    def train_data(self, *, root: str | None) -> Data:
        data = super().train_data(root=root)
        assert isinstance(data, ToyData)
        x, y = data.tensors
        sign = torch.randn(len(x), 1, generator=torch.Generator().manual_seed(3), dtype=x.dtype)
        return ToyData(tensors=(torch.cat([sign, x], dim=1), y))

    def build_model(self) -> nn.Module:
        return Branches().to(getattr(torch, self.dtype))

    def parallelize(self, model: nn.Module) -> list[nn.Module] | None:
        return super().parallelize(model) if self.shard_branches else None


class SharedLayer(nn.Module):
    """One layer `calls` times in a forward; with `skips`, in every second forward not at all."""

    def __init__(self, width: int, *, calls: int, skips: bool) -> None:
        super().__init__()
        self.first, self.shared, self.last = nn.Linear(5, width), nn.Linear(width, width), nn.Linear(width, 2)
        self.calls = calls
        self.skips = skips
        self.num_forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_forwards += 1
        hidden = torch.tanh(self.first(x))
        if not (self.skips and self.num_forwards % 2):
            for _ in range(self.calls):
                hidden = torch.tanh(self.shared(hidden))
        found: Tensor = self.last(hidden)
        return found


@dataclass(kw_only=True)
class ToySharedLayer(ToyRegression):
    calls: int = 1
    skips: bool = False

    def build_model(self) -> nn.Module:
        return SharedLayer(self.width, calls=self.calls, skips=self.skips).to(getattr(torch, self.dtype))


def toy_spec(
    *,
    layout: tuple[int, int, int] = (4, 1, 2),
    effective_batch_size: int | None = None,
    task: str = "ToyRegression",
    arguments: dict[str, Any] | None = None,
    learning_rate: float = 0.05,
    max_optimizer_steps: int = 10,
    seed: int = 0,
    kind: str = "convergence",
    run_id: str = "toy",
    **sections: Any,
) -> RunSpec:
    """A run of a toy task. `sections` are config fields; a dict updates a section's own fields."""
    b, n, g = layout
    config = SweepConfig(task={"_target_": f"tests.training.toys.{task}", **(arguments or {})})
    config.strategy = "ddp"
    config.budget.max_optimizer_steps = max_optimizer_steps
    config.noise_scale.enabled = False
    for name, value in sections.items():
        if isinstance(value, dict):
            section = dataclasses.replace(getattr(config, name), **value)
            setattr(config, name, section)
        else:
            setattr(config, name, value)
    return RunSpec(
        run_id=run_id,
        kind=kind,  # type: ignore[arg-type]
        effective_batch_size=effective_batch_size or b * n * g,
        layout=Layout(micro_batch_size=b, world_size=n, accumulation_steps=g),
        learning_rate=learning_rate,
        seed=seed,
        config=config,
    )


class Recorder:
    """A sink that keeps what it is given, and asks to stop once it has seen `stop_after` polls."""

    def __init__(self, *, stop_after: int | None = None) -> None:
        self.steps: list[Any] = []
        self.evaluations: list[Any] = []
        self._polls = 0
        self._stop_after = stop_after

    def __call__(self, *, steps: list[Any], evaluations: list[Any]) -> None:
        self.steps += steps
        self.evaluations += evaluations

    def should_stop(self) -> bool:
        self._polls += 1
        return self._stop_after is not None and self._polls >= self._stop_after


def train_toy(
    rank: int = 0, *, spec: RunSpec, run_directory: Any = None, stop_after: int | None = None
) -> tuple[Any, list[Any], list[Any]]:
    """(result, step records, evaluations) of this rank."""
    recorder = Recorder(stop_after=stop_after)
    result = train_run(
        spec,
        process=ProcessContext(rank=rank, world_size=spec.layout.world_size),
        sink=recorder,
        run_directory=run_directory,
        should_stop=recorder.should_stop,
    )
    return result, recorder.steps, recorder.evaluations


def gradients_of(
    rank: int = 0, *, spec: RunSpec, num_steps: int = 1
) -> tuple[dict[str, np.ndarray[Any, Any]], float, StepTraffic]:
    """Whole gradient by parameter name, Σ loss over all ranks, and traffic of attempted step `num_steps`.

    The learning rate is 0, so every step's gradient is taken at the initial parameters.
    """
    process = ProcessContext(rank=rank, world_size=spec.layout.world_size)
    trainer = build_trainer(dataclasses.replace(spec, learning_rate=0.0), process=process)
    stepper = Stepper(trainer, progress=RunProgress(), sink=Recorder(), flags=lambda: (False, False))
    for _ in range(num_steps):
        readings = stepper.attempt()
    gradients = {}
    for name, tensor in trainer.parts.parameters:
        assert tensor.grad is not None, name
        whole = tensor.grad.full_tensor() if isinstance(tensor.grad, DTensor) else tensor.grad
        gradients[name] = whole.double().numpy().copy()
    trainer.parts.strategy.close()
    loss = readings[-1].loss
    return gradients, float("nan") if loss is None else loss, stepper.traffic
