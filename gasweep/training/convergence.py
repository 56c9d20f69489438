"""A convergence run: train until the hardest target, the budget or divergence."""

from __future__ import annotations

import math
import time

from gasweep.errors import TaskError
from gasweep.results.records import EvalRecord
from gasweep.results.states import RunState
from gasweep.training.advance import Stepper
from gasweep.training.build import Trainer
from gasweep.training.checkpoint import CheckpointStore
from gasweep.training.divergence import MAX_OVERFLOWS, DivergenceCheck
from gasweep.training.evaluate import Evaluator, next_evaluation
from gasweep.training.process import Interrupted, Sink, StopRequested
from gasweep.training.progress import RunProgress
from gasweep.training.run_check import check_budget
from gasweep.training.step_log import StepReading
from gasweep.training.targets import all_reached, target_rules

Ending = tuple[RunState, str | None]


class ConvergenceRun:
    """One run from its first step, or its last checkpoint, to its end.

    `run` returns the final state and, for anything but reached, why. Raises Interrupted, on every rank and
    after a checkpoint, once rank 0 was asked to stop.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        progress: RunProgress,
        store: CheckpointStore | None,
        sink: Sink,
        should_stop: StopRequested,
    ) -> None:
        check_budget(trainer.parts.spec)
        config = trainer.parts.spec.config
        self.progress = progress
        self.step_seconds: list[float] = []
        self._config = config
        self._trainer = trainer
        self._batch_size = trainer.parts.spec.effective_batch_size
        self._rules = target_rules(config.target, metrics=trainer.parts.task.metrics())
        self._divergence = DivergenceCheck(
            factor=config.budget.divergence_factor,
            effective_batch_size=self._batch_size,
            metric=config.target.metric,
        )
        self._evaluator = Evaluator(trainer.parts)
        self._store = store
        self._should_stop = should_stop
        self.stepper = Stepper(trainer, progress=progress, sink=sink, flags=self._flags)
        self._started_s = time.perf_counter() - progress.wall_s
        self._saved_s = time.perf_counter()

    def run(self) -> Ending:
        try:
            while True:
                if (ending := self._next()) is not None:
                    return ending
        finally:
            self.progress.wall_s = time.perf_counter() - self._started_s
            self.stepper.log.hand_over(now=True)

    def _next(self) -> Ending | None:
        """One evaluation, if due, and one attempted step; the run's ending, if it has come."""
        progress = self.progress
        is_spent = self._budget_is_spent()
        if progress.applied >= progress.next_evaluation or is_spent:
            ending = self._digest(self.stepper.read())
            if ending is None and is_spent:
                # Before the evaluation: a run that a larger budget reopens must not see it.
                self._save()
            if ending is None and self._latest_evaluation() != progress.applied:
                ending = self._evaluate()
            if ending is not None:
                return ending
        if is_spent:
            return RunState.CENSORED, self._budget_reason()
        ending = self._digest(self.stepper.attempt())
        self.stepper.log.hand_over()
        return ending

    def _evaluate(self) -> Ending | None:
        progress = self.progress
        metrics = self._evaluator.run()
        first = progress.evaluations[0].metrics["eval_loss"] if progress.evaluations else metrics["eval_loss"]
        reason = self._divergence.of_evaluation(
            metrics, first_evaluation=first, optimizer_step=progress.applied
        )
        if reason is not None:
            return RunState.DIVERGED, reason
        record = EvalRecord(
            optimizer_step=progress.applied,
            contributions=progress.contributions,
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        )
        progress.evaluations.append(record)
        self.stepper.log.add_evaluation(record)
        progress.next_evaluation = next_evaluation(progress.applied, self._config.evaluation)
        return (RunState.REACHED, None) if all_reached(self._rules, progress.evaluations) else None

    def _digest(self, readings: list[StepReading]) -> Ending | None:
        """Learn from steps just read: divergence, skips, rank 0's wishes."""
        for reading in readings:
            self.step_seconds.append(reading.seconds)
            if (ending := self._judge(reading)) is not None:
                self._step_back_to(reading)
                return ending
        if readings:
            decision = readings[-1].decision
            if decision.save or decision.stop:
                self._save()
            if decision.stop:
                raise Interrupted(
                    f"run {self._trainer.parts.spec.run_id} was asked to stop at optimizer step "
                    f"{self.progress.applied}"
                )
        return None

    def _judge(self, reading: StepReading) -> Ending | None:
        progress = self.progress
        if reading.loss is None:
            self._refuse_empty_data()
            return None
        progress.recent_losses = [*progress.recent_losses, reading.loss][-self._divergence.window :]
        reason = self._divergence.of_step(
            progress.recent_losses,
            first_evaluation=progress.evaluations[0].metrics["eval_loss"],
            optimizer_step=reading.record.optimizer_step,
        )
        if reason is None and progress.consecutive_skips >= MAX_OVERFLOWS:
            reason = f"fp16 gradients overflowed in {MAX_OVERFLOWS} optimizer steps in a row"
        return None if reason is None else (RunState.DIVERGED, reason)

    def _step_back_to(self, reading: StepReading) -> None:
        """On a GPU a run goes on for some steps before a diverged one is read; they do not count."""
        self.progress.attempted = reading.attempted
        self.progress.applied = reading.record.optimizer_step
        self.progress.contributions = reading.record.contributions
        self.stepper.log.drop_after(reading.record.optimizer_step)

    def _refuse_empty_data(self) -> None:
        if self.progress.consecutive_skips * self._batch_size > 2 * len(self._trainer.parts.data) + 1:
            raise TaskError(
                f"no example of the training data holds an item: task.count_items was 0 for "
                f"{self.progress.consecutive_skips} optimizer steps in a row"
            )

    def _flags(self) -> tuple[bool, bool]:
        """(stop, save): what rank 0 wants of every rank."""
        every_s = self._config.checkpoint.every_s
        every_steps = self._config.checkpoint.every_optimizer_steps
        due = every_s is not None and time.perf_counter() - self._saved_s >= every_s
        due = due or (every_steps is not None and self.progress.attempted % every_steps == 0)
        return self._should_stop(), due and self._store is not None

    def _save(self) -> None:
        if self._store is not None:
            self.progress.wall_s = time.perf_counter() - self._started_s
            self.stepper.log.hand_over(now=True)
            self._store.save(self.progress)
            self._saved_s = time.perf_counter()

    def _latest_evaluation(self) -> int:
        evaluations = self.progress.evaluations
        return evaluations[-1].optimizer_step if evaluations else -1

    def _budget_is_spent(self) -> bool:
        budget, progress = self._config.budget, self.progress
        over_examples = (
            budget.max_examples is not None
            and progress.contributions + self._batch_size > budget.max_examples
        )
        over_steps = budget.max_optimizer_steps is not None and progress.applied >= budget.max_optimizer_steps
        return over_examples or over_steps

    def _budget_reason(self) -> str:
        budget, progress = self._config.budget, self.progress
        spent = (
            f"the budget ended at optimizer step {progress.applied}, {progress.contributions} contributions "
            f"(budget.max_examples={budget.max_examples}, "
            f"budget.max_optimizer_steps={budget.max_optimizer_steps})"
        )
        return spent if self._rules else f"{spent}; target.value is null, so nothing ends the run earlier"
