"""The life of one attempt on its gang of ranks: pure, told the time and what happened, says what to do."""

from __future__ import annotations

from gasweep.scheduling.backend import Attempt, Cause, Event, Failed, Finished
from gasweep.scheduling.outcome import Outcome, is_retryable, root_failure

STRAGGLER_GRACE_S = 2.0
"""After a rank has ended badly, the others get this long to notice by themselves: a broken connection tells
gloo peers within milliseconds, NCCL peers may never notice."""


class Gang:
    """Ranks 0 … N-1 of one attempt.

    used: whether any of its workers ran something before. timeout_s: longest time without progress.
    """

    def __init__(self, attempt: Attempt, *, now_s: float, timeout_s: float, used: bool) -> None:
        self.attempt = attempt
        self._timeout_s = timeout_s
        self._used = used
        self._last_progress_s = now_s
        self._outcomes: dict[int, Outcome] = {}  # in the order they ended
        self._first_failure_s: float | None = None
        self._kill_cause: Cause | None = None

    @property
    def world_size(self) -> int:
        return self.attempt.spec.layout.world_size

    @property
    def done(self) -> bool:
        return len(self._outcomes) == self.world_size

    def progressed(self, now_s: float) -> None:
        self._last_progress_s = now_s

    def rank_ended(self, rank: int, outcome: Outcome, *, now_s: float) -> None:
        """A rank returned, raised or was lost; what a killed rank seems to have died of is not believed."""
        if self._kill_cause is not None and outcome.cause in (Cause.PROCESS_DEATH, Cause.NODE_DEATH):
            outcome = Outcome(cause=self._kill_cause, message=self._kill_message(), reusable=False)
        self._outcomes[rank] = outcome
        # A rank that stopped on request does not hurry the others: rank 0 may still write the checkpoint.
        if outcome.cause not in (None, Cause.INTERRUPTED) and self._first_failure_s is None:
            self._first_failure_s = now_s

    def to_kill(self, now_s: float) -> list[int]:
        """Ranks to kill now: stragglers of a failed gang, or all of one that makes no progress. Told once."""
        if self._kill_cause is not None or self.done:
            return []
        if self._first_failure_s is not None:
            if now_s - self._first_failure_s < STRAGGLER_GRACE_S:
                return []
            self._kill_cause = Cause.COMMUNICATION
        elif now_s - self._last_progress_s >= self._timeout_s:
            self._kill_cause = Cause.TIMEOUT
        else:
            return []
        return [rank for rank in range(self.world_size) if rank not in self._outcomes]

    def outcome(self, rank: int) -> Outcome:
        """How a rank that has ended did."""
        return self._outcomes[rank]

    def ending(self) -> Event:
        """The attempt's last event; every rank has ended.

        A result of rank 0 is the run's result: it is made after the last collective, and is on the disk, so
        a rank that is lost while it tidies up changes nothing.
        """
        assert self.done
        spec, number = self.attempt.spec, self.attempt.number
        first = self._outcomes[0]
        if first.cause is None and first.result is not None:
            return Finished(run_id=spec.run_id, attempt=number, result=first.result)
        rank, outcome = root_failure(self._outcomes.items())
        cause = outcome.cause or Cause.PYTHON_ERROR
        return Failed(
            run_id=spec.run_id,
            attempt=number,
            cause=cause,
            message=f"rank {rank}: {outcome.message}" if self.world_size > 1 else outcome.message,
            log_path=self.attempt.run_directory / log_name(rank),
            retryable=is_retryable(cause, used_workers=self._used),
            trace=outcome.trace,
        )

    def _kill_message(self) -> str:
        if self._kill_cause is Cause.TIMEOUT:
            return (
                f"no progress for cluster.attempt_timeout_s={self._timeout_s:g}; raise it if one optimizer "
                "step, an evaluation or preparing the data takes longer (the log holds every thread's stack)"
            )
        return "killed after another rank had failed"


def log_name(rank: int) -> str:
    """The file in a run's directory that holds what a rank wrote."""
    return "log.txt" if rank == 0 else f"log.rank{rank}.txt"
