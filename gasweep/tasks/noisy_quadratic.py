"""The noisy quadratic: the task whose gradient noise, curvature and optimum are known in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gasweep.analysis.noisy_quadratic import QuadraticProblem
from gasweep.errors import TaskError
from gasweep.tasks.arguments import refuse_root, require_number, require_whole
from gasweep.tasks.base import Batch, Data, SummedLoss, Task
from gasweep.tasks.counter_noise import unit_noise

if TYPE_CHECKING:
    from torch import Tensor, nn

Array = np.ndarray[Any, Any]
NOISE_KINDS = ("additive", "multiplicative")


@dataclass(frozen=True, kw_only=True)
class CounterNoise(Data):
    """Example i is a vector of `dimension` noise values, a pure function of (i, seed): nothing is stored."""

    num_examples: int
    dimension: int
    seed: int

    def __len__(self) -> int:
        return self.num_examples

    def batch(self, indices: Array) -> Batch:
        import torch

        return torch.from_numpy(unit_noise(indices, dimension=self.dimension, seed=self.seed))


@dataclass(kw_only=True)
class NoisyQuadratic(Task):
    """Expected loss ½Σh_j·θ_j²; example i's gradient along j is h_j·θ_j plus noise of known variance.

    dimension: d, the number of coordinates.
    condition_number: h falls geometrically from 1 to 1/condition_number; stable rates are below 2.
    noise: "additive", variance s_j² wherever θ is, or "multiplicative", variance κ²(h_j·θ_j)².
    noise_scale: tr Σ/|G|² in examples at the initial θ. With multiplicative noise it is κ² everywhere; with
        additive noise it grows as 1/|G|².
    noise_alignment: additive noise has s_j² proportional to h_j to this power.
    initial_loss: expected loss at the initial θ, an equal share of it in every coordinate.
    num_examples: D. Examples are computed, not stored, so that it may be huge; the truths below are those of
        an unlimited data set, from which one of D examples differs by a relative 1/D in tr Σ/B_noise.
    example_seed: which examples.

    eval_loss is the exact expected loss at the model's θ, free of sampling noise; its minimum is 0. The
    training loss is that of the examples drawn and may be negative.
    Source: Zhang et al. 2019, arXiv:1907.04164, section 3.
    """

    dimension: int = 64
    condition_number: float = 100.0
    noise: str = "additive"
    noise_scale: float = 10.0
    noise_alignment: float = 1.0
    initial_loss: float = 1.0
    num_examples: int = 1 << 20
    example_seed: int = 0

    def __post_init__(self) -> None:
        require_whole("NoisyQuadratic", "dimension", self.dimension, at_least=1)
        require_whole("NoisyQuadratic", "num_examples", self.num_examples, at_least=1)
        require_whole("NoisyQuadratic", "example_seed", self.example_seed, at_least=0)
        require_number("NoisyQuadratic", "condition_number", self.condition_number, low=1.0)
        require_number("NoisyQuadratic", "noise_scale", self.noise_scale, low=0.0)
        require_number("NoisyQuadratic", "noise_alignment", self.noise_alignment, low=-4.0, high=4.0)
        require_number(
            "NoisyQuadratic", "initial_loss", self.initial_loss, low=0.0, low_included=False, high=1e12
        )
        if self.noise not in NOISE_KINDS:
            raise TaskError(f"NoisyQuadratic: noise={self.noise!r} must be one of {', '.join(NOISE_KINDS)}")

    def problem(self) -> QuadraticProblem:
        """The same problem for `gasweep.analysis.noisy_quadratic`."""
        if self.dimension == 1:
            h = np.ones(1)
        else:
            h = np.geomspace(1.0, 1.0 / self.condition_number, self.dimension)
        initial = np.sqrt(2.0 * self.initial_loss / (self.dimension * h))
        trace = self.noise_scale * float(np.sum((h * initial) ** 2))
        shares = h**self.noise_alignment / float(np.sum(h**self.noise_alignment))
        additive = self.noise == "additive"
        return QuadraticProblem(
            curvatures=h,
            initial=initial,
            noise_variances=trace * shares if additive else np.zeros(self.dimension),
            relative_noise_variance=0.0 if additive else self.noise_scale,
        )

    def true_grad_sq_norm(self, model: nn.Module) -> float:
        """|G|² of the expected gradient at the model's θ."""
        return self.problem().grad_sq_norm(_theta(model) ** 2)

    def true_grad_noise_trace(self, model: nn.Module) -> float:
        """tr Σ of one example's gradient at the model's θ."""
        return self.problem().grad_noise_trace(_theta(model) ** 2)

    def true_noise_scale(self, model: nn.Module) -> float:
        """tr Σ/|G|² in examples at the model's θ; infinite at the optimum."""
        grad_sq_norm = self.true_grad_sq_norm(model)
        return self.true_grad_noise_trace(model) / grad_sq_norm if grad_sq_norm > 0.0 else math.inf

    def train_data(self, *, root: str | None) -> CounterNoise:
        refuse_root("NoisyQuadratic", root, source="is computed")
        return CounterNoise(num_examples=self.num_examples, dimension=self.dimension, seed=self.example_seed)

    def build_model(self) -> nn.Module:
        import torch

        from gasweep.tasks.models.quadratic import Quadratic

        problem = self.problem()
        return Quadratic(
            initial=torch.tensor(problem.initial, dtype=torch.float32),
            curvatures=torch.tensor(problem.curvatures, dtype=torch.float32),
            noise_deviations=torch.tensor(np.sqrt(problem.noise_variances), dtype=torch.float32),
            relative_noise_deviation=math.sqrt(problem.relative_noise_variance),
        )

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        return SummedLoss(total=model(batch).sum(), num_items=len(batch))

    def group_losses(self, model: nn.Module, batch: Batch) -> Tensor:
        losses: Tensor = model(batch)
        return losses

    def eval_batches(self, *, root: str | None, batch_size: int, max_examples: int | None) -> list[Batch]:
        """One example without noise, whose loss is the expected loss."""
        import torch

        refuse_root("NoisyQuadratic", root, source="is computed")
        return [torch.zeros(1, self.dimension)]

    def eval_sums(self, model: nn.Module, batch: Batch) -> dict[str, tuple[float, float]]:
        return {"eval_loss": (float(model(batch).double().sum()), float(len(batch)))}


def _theta(model: nn.Module) -> Array:
    """θ in double precision, whatever wraps the model (DDP, or FSDP2's sharded parameters)."""
    for name, parameter in model.named_parameters():
        if name.rsplit(".", maxsplit=1)[-1] == "theta":
            whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            theta: Array = whole.detach().double().cpu().numpy()
            return theta
    raise TaskError(f"{type(model).__name__} has no parameter 'theta': it is no model of NoisyQuadratic")
