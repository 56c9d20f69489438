"""One cell of anyone's file: a number, a word for how a run ended, or a reason why it is neither."""

from __future__ import annotations

import math
import re
from enum import StrEnum

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
WHOLE = re.compile(r"[+-]?\d{1,1000}")
MISSING = frozenset({"", "none", "null", "na", "n/a", "-"})


_LONGEST = 60
"""Characters of a cell that an error message shows."""


class BadCell(Exception):
    """Why a cell cannot be used; the reader adds file and line."""


class Ending(StrEnum):
    """How a run ended, as far as the fit is concerned."""

    REACHED = "reached"
    NOT_REACHED = "censored"
    DIVERGED = "diverged"
    NO_INFORMATION = "no information"  # crashed, or not finished
    UNSTATED = "unstated"  # ended by itself; whether it reached the target shows elsewhere


ENDINGS: dict[str, Ending] = {
    **dict.fromkeys(("true", "yes", "y", "t", "1", "1.0", "reached", "hit", "converged"), Ending.REACHED),
    **dict.fromkeys(
        ("false", "no", "n", "f", "0", "0.0", "not reached", "unreached", "censored", "pruned", "timeout",
         "budget", "did not converge", "not converged"),
        Ending.NOT_REACHED,
    ),
    **dict.fromkeys(("diverged", "exploded", "unstable", "diverge"), Ending.DIVERGED),
    **dict.fromkeys(
        ("failed", "crashed", "killed", "infeasible", "interrupted", "running", "waiting", "pending",
         "queued", "preempted", "preempting"),
        Ending.NO_INFORMATION,
    ),
    **dict.fromkeys(("finished", "completed", "done"), Ending.UNSTATED),
}  # fmt: skip


def is_missing(raw: object) -> bool:
    return raw is None or (isinstance(raw, str) and raw.strip().lower() in MISSING)


def number(raw: object, name: str) -> float:
    """A finite number. Raises: BadCell."""
    value = _any_number(raw)
    if value is None:
        raise BadCell(f"{name}: {_shown(raw)} is not a number")
    if not math.isfinite(value):
        raise BadCell(f"{name}: {_shown(raw)} is not a finite number")
    return value


def positive(raw: object, name: str) -> float:
    """A finite number > 0. Raises: BadCell."""
    value = number(raw, name)
    if value <= 0:
        raise BadCell(f"{name}: {_shown(raw)} must be positive")
    return value


def metric(raw: object, name: str) -> float | None:
    """A metric's value; None where it is NaN or infinite, which only a diverging run writes."""
    value = _any_number(raw)
    if value is None:
        raise BadCell(f"{name}: {_shown(raw)} is not a number")
    return value if math.isfinite(value) else None


def ending(raw: object, name: str) -> Ending:
    """How the run ended. Raises: BadCell for a word that is not known."""
    word = str(raw).strip().lower().replace("_", " ")
    if word not in ENDINGS:
        raise BadCell(
            f"{name}: {_shown(raw)} is unknown; use true, false, reached, censored, diverged or failed"
        )
    return ENDINGS[word]


def _any_number(raw: object) -> float | None:
    """A float, possibly not finite; None when `raw` is not a number (bools and '1_000' are not)."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int | float):
        try:
            return float(raw)
        except OverflowError:
            return math.inf if raw > 0 else -math.inf
    if not isinstance(raw, str):
        return None
    text = raw.strip()
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return float(text)
    return float(text) if NUMBER.fullmatch(text) else None


def _shown(raw: object) -> str:
    text = "an empty cell" if raw is None or raw == "" else repr(raw)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
