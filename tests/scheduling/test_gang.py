"""The life of one attempt, told event by event."""

from __future__ import annotations

from pathlib import Path

import pytest
from scheduling_fakes import make_result
from scheduling_specs import make_spec

from gasweep.scheduling.backend import Attempt, Cause, Failed, Finished
from gasweep.scheduling.gang import STRAGGLER_GRACE_S, Gang
from gasweep.scheduling.outcome import Outcome, is_retryable


def gang(world_size: int = 2, *, used: bool = False, timeout_s: float = 60.0) -> Gang:
    attempt = Attempt(spec=make_spec("run", world_size=world_size), number=1, run_directory=Path("runs/run"))
    return Gang(attempt, now_s=0.0, timeout_s=timeout_s, used=used)


def failure(cause: Cause, message: str = "it failed") -> Outcome:
    return Outcome(cause=cause, message=message)


def ending(gang: Gang) -> Failed:
    end = gang.ending()
    assert isinstance(end, Failed)
    return end


def test_rank_0s_result_is_the_runs() -> None:
    subject = gang()
    subject.rank_ended(1, Outcome(), now_s=1.0)
    assert not subject.done
    subject.rank_ended(0, Outcome(result=make_result(make_spec("run"))), now_s=1.0)
    assert isinstance(subject.ending(), Finished)


def test_a_rank_lost_while_it_tidies_up_changes_nothing() -> None:
    subject = gang()
    subject.rank_ended(0, Outcome(result=make_result(make_spec("run"))), now_s=1.0)
    subject.rank_ended(1, failure(Cause.PROCESS_DEATH), now_s=1.1)
    assert isinstance(subject.ending(), Finished)


def test_stragglers_are_killed_after_their_grace_and_told_once() -> None:
    subject = gang(3)
    subject.rank_ended(1, failure(Cause.PROCESS_DEATH), now_s=10.0)
    assert subject.to_kill(10.0 + STRAGGLER_GRACE_S - 0.1) == []
    assert subject.to_kill(10.0 + STRAGGLER_GRACE_S) == [0, 2]
    assert subject.to_kill(100.0) == []


def test_a_finished_or_stopped_rank_hurries_nobody() -> None:
    for first in (Outcome(), failure(Cause.INTERRUPTED)):
        subject = gang()
        subject.rank_ended(1, first, now_s=0.0)
        assert subject.to_kill(30.0) == []


def test_a_rank_that_stopped_first_takes_the_connection_from_its_peers() -> None:
    subject = gang()
    subject.rank_ended(1, failure(Cause.INTERRUPTED), now_s=0.0)
    subject.rank_ended(0, failure(Cause.COMMUNICATION, "connection closed by peer"), now_s=0.1)
    assert ending(subject).cause is Cause.INTERRUPTED


def test_silence_kills_all_and_progress_puts_it_off() -> None:
    subject = gang(timeout_s=60.0)
    subject.progressed(50.0)
    assert subject.to_kill(100.0) == []
    assert subject.to_kill(110.0) == [0, 1]
    for rank in (0, 1):
        subject.rank_ended(rank, failure(Cause.PROCESS_DEATH, "killed"), now_s=111.0)
    end = ending(subject)
    assert end.cause is Cause.TIMEOUT
    assert "no progress for cluster.attempt_timeout_s=60" in end.message


def test_a_result_that_arrives_while_it_is_being_killed_counts() -> None:
    subject = gang(1, timeout_s=60.0)
    assert subject.to_kill(60.0) == [0]
    subject.rank_ended(0, Outcome(result=make_result(make_spec("run"))), now_s=60.1)
    assert isinstance(subject.ending(), Finished)


@pytest.mark.parametrize(
    ("echo", "root"),
    [
        (Cause.COMMUNICATION, Cause.PROCESS_DEATH),
        (Cause.COMMUNICATION, Cause.PYTHON_ERROR),
        (Cause.COMMUNICATION, Cause.OOM),
        (Cause.PYTHON_ERROR, Cause.PROCESS_DEATH),
        (Cause.TIMEOUT, Cause.USER_ERROR),
        (Cause.PROCESS_DEATH, Cause.NODE_DEATH),
    ],
)
def test_the_root_of_a_failure_is_told_not_its_echo(echo: Cause, root: Cause) -> None:
    for order in ((0, 1), (1, 0)):
        subject = gang()
        for rank in order:
            subject.rank_ended(rank, failure(root if rank == 1 else echo, f"{rank}"), now_s=1.0)
        end = ending(subject)
        assert (end.cause, end.message) == (root, "rank 1: 1")
        assert end.log_path == Path("runs/run/log.rank1.txt")


def test_killed_stragglers_are_not_the_reason() -> None:
    subject = gang()
    subject.rank_ended(0, failure(Cause.COMMUNICATION, "connection closed"), now_s=0.0)
    assert subject.to_kill(STRAGGLER_GRACE_S) == [1]
    subject.rank_ended(1, failure(Cause.PROCESS_DEATH), now_s=3.0)
    end = ending(subject)
    assert (end.cause, end.message) == (Cause.COMMUNICATION, "rank 0: connection closed")
    assert end.retryable


def test_what_may_be_tried_again() -> None:
    lost = {Cause.PROCESS_DEATH, Cause.NODE_DEATH, Cause.TIMEOUT, Cause.COMMUNICATION}
    used = {Cause.OOM, Cause.DEVICE_ERROR}
    for cause in Cause:
        assert is_retryable(cause, used_workers=False) == (cause in lost)
        assert is_retryable(cause, used_workers=True) == (cause in lost | used)
