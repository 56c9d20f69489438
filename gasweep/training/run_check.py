"""What must hold before a run is built; every rank finds the same."""

from __future__ import annotations

from gasweep.batching.partition import partition_step
from gasweep.config.run_spec import RunSpec
from gasweep.errors import ConfigError, RefusedError
from gasweep.training.evaluate import check_evaluation
from gasweep.training.process import ProcessContext
from gasweep.training.schedule import check_schedule


def check_run(spec: RunSpec, process: ProcessContext) -> None:
    """Raises ConfigError or RefusedError, naming field, value and constraint, for what cannot run."""
    if spec.kind not in ("convergence", "probe"):
        raise ConfigError(f"kind={spec.kind!r} of run {spec.run_id} must be convergence or probe")
    if process.world_size != spec.layout.world_size:
        raise ConfigError(
            f"world_size={spec.layout.world_size} of run {spec.run_id} does not match the "
            f"{process.world_size} processes that were started"
        )
    if spec.config.determinism not in ("fast", "bitwise"):
        raise ConfigError(f"determinism={spec.config.determinism!r} must be fast or bitwise")
    if spec.config.ramp is not None:
        raise RefusedError(
            f"ramp={spec.config.ramp!r}: the trainer keeps one effective batch size through a run; use "
            "ramp: null"
        )
    _check_layout(spec)
    check_schedule(spec.config.schedule)
    check_evaluation(spec.config.evaluation)


def _check_layout(spec: RunSpec) -> None:
    layout = spec.layout
    partition = partition_step(
        effective_batch_size=spec.effective_batch_size,
        micro_batch_size=layout.micro_batch_size,
        world_size=layout.world_size,
    )
    if partition.accumulation_steps != layout.accumulation_steps:
        raise ConfigError(
            f"effective_batch_size={spec.effective_batch_size} of run {spec.run_id} takes "
            f"{partition.accumulation_steps} micro-steps of micro_batch_size={layout.micro_batch_size} on "
            f"world_size={layout.world_size}, not accumulation_steps={layout.accumulation_steps}"
        )


def check_budget(spec: RunSpec) -> None:
    """Raises ConfigError for a convergence run that nothing is sure to end."""
    budget = spec.config.budget
    if budget.max_examples is None and budget.max_optimizer_steps is None:
        raise ConfigError(
            "budget.max_examples and budget.max_optimizer_steps are both null: a run that never reaches its "
            "target would never end; give one"
        )


def check_probe(spec: RunSpec) -> None:
    """Raises ConfigError for a probe that times nothing."""
    options = spec.config.sweep
    if options.probe_optimizer_steps < 1 or options.probe_warmup_optimizer_steps < 0:
        raise ConfigError(
            f"sweep.probe_optimizer_steps={options.probe_optimizer_steps} must be >= 1 and "
            f"sweep.probe_warmup_optimizer_steps={options.probe_warmup_optimizer_steps} must be >= 0"
        )
