"""Batch arithmetic and the accumulation primitive. Imports the standard library only."""

from gasweep.batching.accumulation import (
    GradientAccumulation,
    TrainStepKwargs,
    run_accumulated_step,
    run_training_steps,
)
from gasweep.batching.arithmetic import effective_batch_size, solve_accumulation_steps
from gasweep.batching.partition import StepPartition, partition_step

__all__ = [
    "GradientAccumulation",
    "StepPartition",
    "TrainStepKwargs",
    "effective_batch_size",
    "partition_step",
    "run_accumulated_step",
    "run_training_steps",
    "solve_accumulation_steps",
]
