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
from gasweep.tasks.base import Task
from gasweep.tasks.resolve import resolve_task
from gasweep.training.accumulator import Accumulator
from gasweep.training.bitwise.accumulator import BitwiseAccumulator
from gasweep.training.bitwise.optimizer_check import refuse_inexact_shards
from gasweep.training.evaluate import check_evaluation
from gasweep.training.fast_accumulator import FastAccumulator, MainGradientAccumulator
from gasweep.training.gradient_noise_observer import NoiseObserver
from gasweep.training.main_parameters import MainParameters, has_low_precision
from gasweep.training.observer import GradientObserver
from gasweep.training.optimizer import build_optimizer
from gasweep.training.parts import TrainingParts
from gasweep.training.planner import StepPlanner
from gasweep.training.precision import Precision
from gasweep.training.process import ProcessContext
from gasweep.training.randomness import seed_everything
from gasweep.training.schedule import check_schedule
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
    _check(spec, process)
    config, device = spec.config, torch.device(process.device)
    bitwise = config.determinism == "bitwise"
    task = resolve_task(config.task)
    data = task.train_data(root=config.data.root)
    precision = Precision(config.precision, device=device)
    module = _build_model(spec, task, precision)
    strategy_name = config.strategy if process.world_size > 1 else "single"
    low = has_low_precision(module) and strategy_name != "fsdp"
    units = task.parallelize(module)
    if config.strategy_options.activation_checkpointing:
        _checkpoint_activations(units)
    strategy = build_strategy(
        strategy_name,
        process=process,
        options=config.strategy_options,
        accumulation_steps=spec.layout.accumulation_steps,
        syncs_gradients=not (bitwise or (low and strategy_name == "ddp")),
    )
    model = strategy.prepare(module, units=units)
    syncs_each = strategy_name == "ddp" and config.strategy_options.sync_every_micro_step
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    has_main = low or (syncs_each and not bitwise)
    main = MainParameters([p for _, p in named]) if has_main else None
    tensors: list[torch.Tensor] = [p for _, p in named] if main is None else main.tensors
    parts = TrainingParts(
        spec=spec,
        process=process,
        device=device,
        task=task,
        data=data,
        stream=IndexStream(
            num_examples=len(data),
            seed=run_data_seed(config.data.seed, spec.seed),
            sampling=config.data.sampling,
        ),
        strategy=strategy,
        precision=precision,
        model=model,
        module=module,
        parameters=[(name, tensor) for (name, _), tensor in zip(named, tensors, strict=True)],
    )
    accumulator = _accumulator(parts, main=main, bitwise=bitwise, low=low, syncs_each=syncs_each)
    build = functools.partial(
        build_optimizer,
        config=config.optimizer,
        learning_rate=spec.learning_rate,
        effective_batch_size=spec.effective_batch_size,
    )
    if bitwise and strategy_name == "fsdp":
        refuse_inexact_shards(build, device=device, dtype=precision.parameter_dtype)
    optimizer = build(tensors)
    observer = _observer(parts, optimizer) if observe is None else observe(parts)
    return Trainer(
        parts=parts,
        planner=StepPlanner(parts, unit=config.grain if bitwise else 1),
        accumulator=accumulator,
        optimizer=optimizer,
        observer=observer,
        step=OptimizerStep(parts, accumulator=accumulator, optimizer=optimizer, main=main, observer=observer),
    )


def _check(spec: RunSpec, process: ProcessContext) -> None:
    if process.world_size != spec.layout.world_size:
        raise ConfigError(
            f"world_size={spec.layout.world_size} of run {spec.run_id} does not match the "
            f"{process.world_size} processes that were started"
        )
    if spec.config.determinism not in ("fast", "bitwise"):
        raise ConfigError(f"determinism={spec.config.determinism!r} must be fast or bitwise")
    check_schedule(spec.config.schedule)
    check_evaluation(spec.config.evaluation)


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


def _accumulator(
    parts: TrainingParts, *, main: MainParameters | None, bitwise: bool, low: bool, syncs_each: bool
) -> Accumulator:
    if bitwise:
        return BitwiseAccumulator(parts)
    if main is None:
        return FastAccumulator(parts)
    if parts.process.world_size == 1:
        syncs = "never"
    elif low:
        syncs = "every_group" if syncs_each else "last"
    else:
        syncs = "strategy"
    return MainGradientAccumulator(parts, main=main, syncs=syncs)


def _observer(parts: TrainingParts, optimizer: torch.optim.Optimizer) -> GradientObserver | None:
    """A probe's steps are timed as they are; a run's measure their gradient noise if the config says so."""
    if parts.spec.kind == "probe" or not parts.spec.config.noise_scale.enabled:
        return None
    return NoiseObserver(parts, optimizer=optimizer)
