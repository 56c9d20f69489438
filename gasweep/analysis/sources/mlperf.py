"""MLPerf reference convergence points: JSON, one entry per reference, with the progress of each seed.

    {"bert_ref_256": {"Benchmark": "bert", "BS": 256, "Hyperparams": {...}, "Epochs to converge": [...]}, ...}

The key "Epochs to converge" holds epochs in some benchmarks, samples or tokens in others: the unit must be
declared. The learning rates were tuned by the submitter, so several entries of one batch size are
alternatives, not a scan, and the best of them counts.

Source: github.com/mlcommons/logging, mlperf_logging/rcp_checker.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gasweep.analysis.sources.cells import BadCell, positive
from gasweep.analysis.sources.options import SourceOptions, Units
from gasweep.analysis.sources.records import parse_json, read_text
from gasweep.analysis.trials import StudyRun
from gasweep.errors import SourceError

CONVERGENCE_KEY = re.compile(r"(epochs|samples|steps|tokens) to converge", re.IGNORECASE)
KEY_UNITS = {"samples": "examples", "tokens": "tokens", "steps": "steps"}


def read_mlperf(path: Path, options: SourceOptions) -> tuple[list[StudyRun], list[str]]:
    """One run per seed of each entry.

    Seeds are named by their place in the list and by their entry: equal places in two lists are not one seed.

    Raises: SourceError naming file, entry and reason.
    """
    content = parse_json(read_text(path), path=path)
    if not isinstance(content, dict) or not content:
        raise SourceError(f"{path}: holds no object of reference convergence points")
    _check_one_benchmark(path, content)
    runs: list[StudyRun] = []
    for name, entry in content.items():
        try:
            runs += _entry(path, name, entry, options)
        except BadCell as problem:
            raise SourceError(f"{path} entry '{name}': {problem}") from None
    return runs, []


def _check_one_benchmark(path: Path, content: dict[str, Any]) -> None:
    names = {str(e["Benchmark"]): None for e in content.values() if isinstance(e, dict) and "Benchmark" in e}
    if len(names) > 1:
        raise SourceError(
            f"{path}: holds several benchmarks ({', '.join(names)}), which have no common B_crit; fit each "
            "by itself"
        )


def _entry(path: Path, name: str, entry: Any, options: SourceOptions) -> list[StudyRun]:
    if not isinstance(entry, dict):
        raise BadCell(f"holds a {type(entry).__name__}, not an object")
    key = next((key for key in entry if CONVERGENCE_KEY.fullmatch(key.strip())), None)
    if key is None or "BS" not in entry:
        raise BadCell(
            f"needs the keys 'BS' and 'Epochs to converge' or 'samples to converge'; has {list(entry)}"
        )
    seeds = entry[key]
    if not isinstance(seeds, list) or not seeds:
        raise BadCell(f"'{key}' holds no list of seeds")
    units = Units.of(options, _unit(key, options))
    batch = units.batch(positive(entry["BS"], "BS"))
    return [
        _run(name, batch, index, positive(value, f"'{key}' seed {index}"), units, options)
        for index, value in enumerate(seeds)
    ]


def _unit(key: str, options: SourceOptions) -> str:
    word = key.split()[0].lower()
    said = KEY_UNITS.get(word)
    if options.progress_unit is not None:
        if said not in (None, options.progress_unit):
            raise BadCell(f"progress_unit: '{key}' counts {said}, not {options.progress_unit} as declared")
        return options.progress_unit
    if said is None:
        raise BadCell(
            f"progress_unit: '{key}' holds epochs, samples or tokens, depending on the benchmark; declare it"
        )
    return said


def _run(
    name: str, batch: float, seed: int, progress: float, units: Units, options: SourceOptions
) -> StudyRun:
    where = f"{name} seed {seed}"
    label = f"{seed} of {name}"
    steps = units.steps(progress, batch)
    if options.evaluation_spacing is None:
        return StudyRun(batch_size=batch, seed=label, steps=steps, variant=name, source=where)
    low = units.steps(max(progress - options.evaluation_spacing, 0.0), batch)
    return StudyRun(batch_size=batch, seed=label, low=low, high=steps, variant=name, source=where)
