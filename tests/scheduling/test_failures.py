from __future__ import annotations

import pytest

from gasweep.errors import BatchError, TaskError
from gasweep.scheduling.backend import Cause
from gasweep.scheduling.failures import cause_of, failed_outcome

GLOO = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:38829."
)


class DistError(RuntimeError):
    """As in torch.distributed."""


class DistBackendError(DistError):
    pass


class OutOfMemoryError(RuntimeError):
    """As in torch."""


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("broken"), Cause.PYTHON_ERROR),
        (ValueError("a task that talks about gloo and NCCL"), Cause.PYTHON_ERROR),
        (SystemExit(3), Cause.PYTHON_ERROR),
        (KeyboardInterrupt(), Cause.PYTHON_ERROR),
        (BatchError("B=3 < N=4"), Cause.USER_ERROR),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), Cause.OOM),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"), Cause.OOM),
        (OutOfMemoryError("anything"), Cause.OOM),
        (MemoryError(), Cause.OOM),
        (RuntimeError("CUDA error: device-side assert triggered"), Cause.DEVICE_ERROR),
        (DistBackendError("NCCL error in: ProcessGroupNCCL.cpp:1234"), Cause.DEVICE_ERROR),
        (RuntimeError(GLOO), Cause.COMMUNICATION),
        (DistBackendError("wait timeout after 1000ms"), Cause.COMMUNICATION),
        (ConnectionResetError("Connection reset by peer"), Cause.COMMUNICATION),
    ],
)
def test_cause(error: BaseException, cause: Cause) -> None:
    assert cause_of(error) is cause


def test_a_process_is_trusted_after_an_exception_in_user_code_only() -> None:
    assert failed_outcome(ValueError("x")).reusable
    assert failed_outcome(TaskError("x")).reusable
    assert not failed_outcome(RuntimeError("CUDA out of memory")).reusable
    assert not failed_outcome(RuntimeError(GLOO)).reusable


def test_messages_are_one_line_and_name_the_type_of_a_foreign_error() -> None:
    assert failed_outcome(ValueError("first\nsecond")).message == "ValueError: first"
    assert failed_outcome(ValueError()).message == "ValueError"
    assert failed_outcome(TaskError("task.width=0 must be >= 1")).message == "task.width=0 must be >= 1"
