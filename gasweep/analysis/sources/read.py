"""Pick the reader that a file's declared kind asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gasweep.analysis.sources.curves import read_curves
from gasweep.analysis.sources.mlperf import read_mlperf
from gasweep.analysis.sources.options import SourceOptions
from gasweep.analysis.sources.steps_table import read_steps_table
from gasweep.analysis.sources.wandb_chart import read_wandb_chart
from gasweep.analysis.trials import StudyRun

READERS = {
    "table": read_steps_table,
    "curves": read_curves,
    "mlperf": read_mlperf,
    "wandb": read_wandb_chart,
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a file held. unit: what batch sizes and E_min count, "examples" or "tokens".

    has_curves: the runs carry curves and need target rules; else they carry steps to target.
    notes: rows left out or merged, for the user to see.
    """

    runs: tuple[StudyRun, ...]
    unit: str
    has_curves: bool
    notes: tuple[str, ...]


def read_source(path: Path | str, options: SourceOptions | None = None) -> Source:
    """The runs of a file.

    Raises: SourceError, one line naming file, line and reason.
    """
    path, options = Path(path), options or SourceOptions()
    kind = options.kind if options.kind != "auto" else _kind_of(path, options)
    options.check_use(kind)
    runs, notes = READERS[kind](path, options)
    in_tokens = options.batch_unit == "tokens" and options.tokens_per_example is None
    return Source(
        runs=tuple(runs),
        unit="tokens" if in_tokens else "examples",
        has_curves=kind in ("curves", "wandb"),
        notes=tuple(notes),
    )


def _kind_of(path: Path, options: SourceOptions) -> str:
    if path.suffix.lower() == ".json":
        return "mlperf"
    return "table" if options.metric is None else "curves"
