"""When a run is called diverged."""

from __future__ import annotations

import math

WINDOW_EXAMPLES = 32
MAX_OVERFLOWS = 100


class DivergenceCheck:
    """Non-finite, or far above where training started.

    metric: the one whose target is trained to; like the loss, it must stay finite.
    factor: the mean training loss over the last steps (together at least 32 examples, so that one hard
        example at a batch size of one is not taken for divergence), or an evaluation loss, above `factor` x
        the first evaluation's loss. Where that one is not positive only non-finite values count.
    """

    def __init__(self, *, factor: float, effective_batch_size: int, metric: str) -> None:
        self.window = max(1, math.ceil(WINDOW_EXAMPLES / effective_batch_size))
        self._factor = factor
        self._metric = metric

    def of_step(self, losses: list[float], *, first_evaluation: float, optimizer_step: int) -> str | None:
        """Why the run diverged, given the last training losses, the newest last; None: it has not."""
        if not math.isfinite(losses[-1]):
            return f"training loss is not finite at optimizer step {optimizer_step}"
        recent = losses[-self.window :]
        mean = math.fsum(recent) / len(recent)
        if len(recent) == self.window and self._is_far_above(mean, first_evaluation):
            return self._told("training loss", mean, first_evaluation, optimizer_step)
        return None

    def of_evaluation(
        self, metrics: dict[str, float], *, first_evaluation: float, optimizer_step: int
    ) -> str | None:
        """Why the run diverged, given an evaluation's losses and target metric; None: it has not."""
        for name in (self._metric, "eval_loss"):
            if not math.isfinite(metrics[name]):
                return f"{name} is not finite at optimizer step {optimizer_step}"
        loss = metrics["eval_loss"]
        if self._is_far_above(loss, first_evaluation):
            return self._told("eval_loss", loss, first_evaluation, optimizer_step)
        return None

    def _is_far_above(self, loss: float, first_evaluation: float) -> bool:
        return first_evaluation > 0 and loss > self._factor * first_evaluation

    def _told(self, name: str, loss: float, first_evaluation: float, optimizer_step: int) -> str:
        return (
            f"{name} {loss:.4g} at optimizer step {optimizer_step} is above budget.divergence_factor="
            f"{self._factor:g} times the first evaluation's {first_evaluation:.4g}"
        )
