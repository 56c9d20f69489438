"""Put one run's trainer together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gasweep.config.run_spec import RunSpec
from gasweep.data.index_stream import IndexStream
from gasweep.data.streams import run_data_seed
from gasweep.errors import ConfigError
from gasweep.tasks.base import Data, Task
from gasweep.tasks.resolve import resolve_task
from gasweep.training.accumulation_choice import choose_accumulation
from gasweep.training.accumulator import Accumulator
from gasweep.training.bitwise.optimizer_check import refuse_inexact_shards
from gasweep.training.gradient_noise_observer import NoiseObserver
from gasweep.training.observer import GradientObserver
from gasweep.training.optimizer import build_optimizer
from gasweep.training.parts import TrainingParts
from gasweep.training.planner import StepPlanner
from gasweep.training.precision import Precision
from gasweep.training.process import ProcessContext
from gasweep.training.randomness import seed_everything
from gasweep.training.run_check import check_run
from gasweep.training.step import OptimizerStep
from gasweep.training.strategies import build_strategy


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """Everything that trains one run, before its first step."""

    parts: TrainingParts
    planner: StepPlanner
    accumulator: Accumulator
    optimizer: torch.optim.Optimizer
    observer: GradientObserver | None
    step: OptimizerStep


def build_trainer(
    spec: RunSpec,
    *,
    process: ProcessContext,
    observe: Callable[[TrainingParts], GradientObserver] | None = None,
) -> Trainer:
    """Build task, data, model, strategy and optimizer. Collective.

    observe: builds the gradient observer; None: the one that the config asks for.

    Raises ConfigError, TaskError or RefusedError for what cannot be run; every rank raises alike.
    """
    check_run(spec, process)
    config = spec.config
    task = resolve_task(config.task)
    data = task.train_data(root=config.data.root)
    precision = Precision(config.precision, device=torch.device(process.device))
    module = _build_model(spec, task, precision)
    units = task.parallelize(module)
    if config.strategy_options.activation_checkpointing:
        _checkpoint_activations(units)
    choice = choose_accumulation(config, module=module, world_size=process.world_size)
    strategy = build_strategy(
        config.strategy,
        process=process,
        options=config.strategy_options,
        accumulation_steps=spec.layout.accumulation_steps,
        syncs_gradients=choice.strategy_syncs,
    )
    model = strategy.prepare(module, units=units)
    main = choice.main_parameters(module)
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    tensors: list[torch.Tensor] = [p for _, p in named] if main is None else main.tensors
    parts = TrainingParts(
        spec=spec,
        process=process,
        device=precision.device,
        task=task,
        data=data,
        stream=_stream(spec, data),
        strategy=strategy,
        precision=precision,
        model=model,
        module=module,
        parameters=[(name, tensor) for (name, _), tensor in zip(named, tensors, strict=True)],
    )
    accumulator = choice.build(parts, main)
    optimizer = _build_optimizer(parts)
    observer = _observer(parts, optimizer) if observe is None else observe(parts)
    return Trainer(
        parts=parts,
        planner=StepPlanner(parts, unit=config.grain if choice.bitwise else 1),
        accumulator=accumulator,
        optimizer=optimizer,
        observer=observer,
        step=OptimizerStep(parts, accumulator=accumulator, optimizer=optimizer, main=main, observer=observer),
    )


def _stream(spec: RunSpec, data: Data) -> IndexStream:
    return IndexStream(
        num_examples=len(data),
        seed=run_data_seed(spec.config.data.seed, spec.seed),
        sampling=spec.config.data.sampling,
    )


def _build_model(spec: RunSpec, task: Task, precision: Precision) -> nn.Module:
    seed_everything(spec.seed, "init", cuda=precision.device.type == "cuda")
    module = task.build_model()
    if precision.parameter_dtype == torch.float64:
        module = module.double()
    return module.to(precision.device).train()


def _checkpoint_activations(units: list[nn.Module] | None) -> None:
    """Recompute each unit's activations in the backward instead of keeping them."""
    if not units:
        raise ConfigError(
            "strategy_options.activation_checkpointing=true needs task.parallelize() to name the submodules "
            "to recompute; it names none"
        )
    for unit in units:
        forward = unit.forward
        unit.forward = lambda *args, _forward=forward, **kwargs: checkpoint(
            _forward, *args, use_reentrant=False, **kwargs
        )


def _build_optimizer(parts: TrainingParts) -> torch.optim.Optimizer:
    spec = parts.spec
    build = functools.partial(
        build_optimizer,
        config=spec.config.optimizer,
        learning_rate=spec.learning_rate,
        effective_batch_size=spec.effective_batch_size,
    )
    if spec.config.determinism == "bitwise" and parts.strategy.name == "fsdp":
        refuse_inexact_shards(build, device=parts.device, dtype=parts.precision.parameter_dtype)
    return build([tensor for _, tensor in parts.parameters])


def _observer(parts: TrainingParts, optimizer: torch.optim.Optimizer) -> GradientObserver | None:
    """A probe's steps are timed as they are; a run's measure their gradient noise if the config says so."""
    if parts.spec.kind == "probe" or not parts.spec.config.noise_scale.enabled:
        return None
    return NoiseObserver(parts, optimizer=optimizer)
