"""The config's typed schema: one dataclass per section, units in the field comments.

Plain dataclasses, so that OmegaConf can check types against them and workers can rebuild them from JSON.
`Any` marks the free-form places (task arguments, grid axes), which `load` checks itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class OptimizerConfig:
    name: str = "sgd"  # sgd | adam | adamw
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    max_grad_norm: float | None = None  # clip the synced gradient of an optimizer step, once
    betas_base_batch_size: int | None = None  # keep the betas' half-life in examples: beta ** (B / base)


@dataclass
class LearningRateScalingConfig:
    """The base that `grid.learning_rate_multiplier` multiplies: base_learning_rate * (B / base) ** p."""

    rule: str = "none"  # none | linear | sqrt | knee (linear up to knee_batch_size, sqrt above)
    base_batch_size: int | None = None  # contributions per optimizer step
    base_learning_rate: float | None = None
    knee_batch_size: int | None = None


@dataclass
class ScheduleConfig:
    name: str = "constant"  # constant | linear | cosine
    warmup_optimizer_steps: int = 0
    horizon_examples: int | None = None  # contributions after which linear/cosine decay has ended
    final_fraction: float = 0.0  # of the peak rate, at the horizon


@dataclass
class DataConfig:
    sampling: str = "epoch"  # epoch | replacement
    seed: int = 0
    root: str | None = None  # folder with the full data set; null: the slice shipped with gasweep


@dataclass
class StrategyOptions:
    sync_every_micro_step: bool = False  # give up no_sync (its bytes for FSDP's unsharded gradients)
    reshard_after_forward: bool = True  # fsdp
    reshard_after_backward: bool = True  # fsdp: false keeps parameters unsharded between micro-steps
    activation_checkpointing: bool = False
    bucket_cap_mb: float = 25.0  # ddp
    find_unused_parameters: bool = False  # ddp, fsdp: the model's branches may leave parameters unused
    static_graph: bool = False  # ddp; refused where no_sync would hide the first backward from it


@dataclass
class TargetConfig:
    metric: str = "eval_loss"
    value: Any = None  # a number, or several: the run goes on until the hardest is reached
    mode: str = "min"  # min | max: which way is better
    rule: str = "first_crossing"  # first_crossing | smoothed | stays_below
    window_fraction: float = 0.0  # of the optimizer steps taken: smoothing / staying window


@dataclass
class EvaluationConfig:
    spacing_fraction: float = 0.05  # next evaluation after this fraction of the optimizer steps taken
    every_optimizer_steps: int | None = None  # a fixed spacing instead
    batch_size: int = 1024  # examples per evaluation forward; never depends on b, N or G
    max_examples: int | None = None


@dataclass
class BudgetConfig:
    max_examples: int | None = None  # contributions
    max_optimizer_steps: int | None = None
    divergence_factor: float = 10.0  # diverged: training loss above this multiple of the first evaluation


@dataclass
class NoiseScaleConfig:
    """The gradient noise scale, measured on a run's own optimizer steps; no part of what the run computes."""

    enabled: bool = True
    every_optimizer_steps: int | None = None  # null: chosen so that overhead_fraction holds
    overhead_fraction: float = 0.01  # of the step time
    parameter_groups: bool = False  # also for each part of the model apart


@dataclass
class SweepOptions:
    mode: str = "factorized"  # factorized | full
    incomplete_groups: bool = False  # allow B that b*N does not divide
    directory: str | None = None  # default: sweeps/<name>
    max_retries: int = 1  # new attempts after a lost worker, per run
    throughput_probes: bool = True
    probe_optimizer_steps: int = 20  # timed optimizer steps of a probe
    probe_warmup_optimizer_steps: int = 5


@dataclass
class ClusterConfig:
    backend: str = "ray"  # ray | inline (this process, world_size 1)
    address: str | None = None  # null: a local cluster; auto or host:port: join one
    num_workers: int | None = None  # null: all GPUs, or all CPU slots where there is no GPU
    threads_per_worker: int = 1
    isolation: str = "reuse"  # reuse | fresh (new worker processes for every run)
    attempt_timeout_s: float = 120.0  # without progress
    lease_idle_s: float = 60.0  # idle workers are given back to a shared cluster after this


@dataclass
class CheckpointConfig:
    every_s: float | None = 60.0
    every_optimizer_steps: int | None = None


@dataclass
class WandbConfig:
    project: str = "gasweep"
    entity: str | None = None
    mode: str = "offline"  # offline | online | disabled
    tags: list[str] = field(default_factory=list)


@dataclass
class TrackingConfig:
    wandb: WandbConfig | None = None
    every_optimizer_steps: int = 1


@dataclass
class SweepConfig:
    name: str = "sweep"
    task: dict[str, Any] = field(default_factory=dict)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    learning_rate_scaling: LearningRateScalingConfig = field(default_factory=LearningRateScalingConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    data: DataConfig = field(default_factory=DataConfig)
    precision: str = "fp32"  # fp32 | bf16 | fp16 | fp64
    determinism: str = "fast"  # fast | bitwise
    grain: int = 8  # examples per grain; bitwise only
    ramp: str | None = None
    strategy: str = "ddp"  # single | ddp | fsdp; one rank always runs as single
    strategy_options: StrategyOptions = field(default_factory=StrategyOptions)
    grid: dict[str, Any] = field(default_factory=dict)
    target: TargetConfig = field(default_factory=TargetConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    noise_scale: NoiseScaleConfig = field(default_factory=NoiseScaleConfig)
    sweep: SweepOptions = field(default_factory=SweepOptions)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
