"""A throughput probe: a few optimizer steps of a run, timed one by one after a warm-up."""

from __future__ import annotations

import copy
import time

import torch

from gasweep.training.advance import Stepper
from gasweep.training.build import Trainer
from gasweep.training.process import Interrupted, Sink, StopRequested
from gasweep.training.progress import RunProgress
from gasweep.training.run_check import check_probe
from gasweep.training.step_split import measure_split


class Probe:
    """Times `sweep.probe_optimizer_steps` attempted steps after `sweep.probe_warmup_optimizer_steps`.

    The device is synchronised around every step, so a step's time is its own; nothing is evaluated. A few
    steps more, not among the timed ones, tell where the time goes.

    seconds_split: see `measure_split`; empty in bitwise mode, whose exchanges cannot be left out.
    """

    def __init__(
        self, trainer: Trainer, *, progress: RunProgress, sink: Sink, should_stop: StopRequested
    ) -> None:
        self.progress = progress
        self.step_seconds: list[float] = []
        self.seconds_split: dict[str, float] = {}
        self._flags = lambda: (should_stop(), False)
        self.stepper = Stepper(trainer, progress=progress, sink=sink, flags=self._flags)
        self._trainer = trainer

    def run(self) -> None:
        """Raises Interrupted, on every rank, once rank 0 was asked to stop."""
        check_probe(self._trainer.parts.spec)
        options = self._trainer.parts.spec.config.sweep
        started = time.perf_counter()
        for number in range(options.probe_warmup_optimizer_steps + options.probe_optimizer_steps):
            seconds = self._timed_step()
            if number >= options.probe_warmup_optimizer_steps:
                self.step_seconds.append(seconds)
        self.progress.wall_s = time.perf_counter() - started
        self.stepper.log.hand_over(now=True)
        if self._trainer.parts.spec.config.determinism == "fast":
            self.seconds_split = measure_split(
                self._trainer,
                progress=copy.deepcopy(self.progress),
                num_pairs=max(3, options.probe_optimizer_steps // 4),
                flags=self._flags,
            )

    def _timed_step(self) -> float:
        device = self._trainer.parts.device
        started = time.perf_counter()
        readings = self.stepper.attempt()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - started
        if any(reading.decision.stop for reading in readings):
            raise Interrupted(f"probe {self._trainer.parts.spec.run_id} was asked to stop")
        return seconds
