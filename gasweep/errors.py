"""Every error gasweep raises on purpose.

    GasweepError
    ├── UserError                 exit code 2: the user can mend it
    │   ├── ConfigError           a config field, override or grid axis
    │   ├── BatchError            batch arithmetic that has no exact answer (also a ValueError)
    │   ├── SourceError           a data file that cannot be read: names file, line and reason
    │   ├── MeasurementError      numbers that cannot come from what they are said to be (also a ValueError)
    │   ├── TaskError             a task that breaks its contract
    │   ├── SweepDirectoryError   a sweep directory that is missing, locked or of another version
    │   ├── RefusedError          a promise (bitwise, pipeline stacking, ...) that cannot be kept here
    │   └── MissingDependencyError  an optional package that the request needs
    └── RunError                  exit code 1: a run failed although the request was valid
        ├── WorkerLostError       a worker process or its node died
        └── RunTimeoutError       an attempt made no progress in its time

A message is one line: the field, its value, the constraint and the fix.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GasweepError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the CLI returns."""

    exit_code = 1


class UserError(GasweepError):
    exit_code = 2


class ConfigError(UserError):
    pass


class BatchError(UserError, ValueError):
    pass


class SourceError(UserError):
    pass


class MeasurementError(UserError, ValueError):
    pass


class TaskError(UserError):
    pass


class SweepDirectoryError(UserError):
    pass


class RefusedError(UserError):
    pass


class MissingDependencyError(UserError):
    pass


class RunError(GasweepError):
    pass


class WorkerLostError(RunError):
    pass


class RunTimeoutError(RunError):
    pass


def nearest(name: str, valid: Iterable[str]) -> str:
    """A clause for an error message: the valid name closest to `name`, or all of them.

    >>> nearest("gird", ["grid", "task"])
    "did you mean 'grid'?"
    """
    choices = list(valid)
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"valid names: {', '.join(sorted(choices))}"
