"""What an exception says about its process; told by names and texts, so that torch is not needed."""

from __future__ import annotations

import re
import traceback

from gasweep.errors import GasweepError, UserError
from gasweep.scheduling.backend import Cause
from gasweep.scheduling.outcome import Outcome

_OOM = re.compile(r"out of memory|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)
_DEVICE = re.compile(r"CUDA error|CUDNN_STATUS|CUBLAS_STATUS|device-side assert|illegal memory access|NCCL")
_COMMUNICATION = re.compile(
    r"gloo|Connection (closed|reset|refused)|Broken pipe|process group|TCPStore|Socket Timeout", re.IGNORECASE
)
_OOM_TYPES = {"OutOfMemoryError", "MemoryError"}
_DEVICE_TYPES = {"AcceleratorError"}
_COMMUNICATION_TYPES = {"DistError", "ConnectionError"}
_TRUSTED = frozenset({Cause.PYTHON_ERROR, Cause.USER_ERROR, Cause.INTERRUPTED})


def cause_of(error: BaseException) -> Cause:
    """The cause that an exception from a training run stands for.

    An NCCL error counts as the device's: the context cannot be trusted afterwards, and its peers' part in it
    cannot be told.
    """
    if isinstance(error, UserError):
        return Cause.USER_ERROR
    types = {kind.__name__ for kind in type(error).__mro__}
    text = str(error)
    if types & _OOM_TYPES or (isinstance(error, RuntimeError) and _OOM.search(text)):
        return Cause.OOM
    if types & _DEVICE_TYPES or (isinstance(error, RuntimeError) and _DEVICE.search(text)):
        return Cause.DEVICE_ERROR
    if types & _COMMUNICATION_TYPES or (isinstance(error, RuntimeError) and _COMMUNICATION.search(text)):
        return Cause.COMMUNICATION
    return Cause.PYTHON_ERROR


def _encodable(text: str) -> str:
    """Text that any file or database takes: a file name that is no UTF-8 reaches messages as surrogates."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def failed_outcome(error: BaseException) -> Outcome:
    """The outcome of a rank that raised `error`.

    After an exception in user code alone the process may serve again. After anything in the device, the
    memory or the process group it may not: a group whose initialisation failed, for one, poisons every later
    one of that process.
    """
    cause = cause_of(error)
    text = _encodable(str(error)).strip().splitlines()
    first = text[0] if text else ""
    known = isinstance(error, GasweepError)
    return Outcome(
        cause=cause,
        message=first if known else f"{type(error).__name__}: {first}".removesuffix(": "),
        trace=_encodable("".join(traceback.format_exception(error))),
        reusable=cause in _TRUSTED,
    )
