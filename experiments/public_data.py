"""B_crit with its interval on public measurements: MLPerf reference points, and Zhang et al. 2024.

    python experiments/public_data.py [DIRECTORY] [--unit BENCHMARK=UNIT[:FACTOR]] [--spacing BENCHMARK=VALUE]

DIRECTORY holds mlperf_rcp/*.json and zhang2024_steps_to_target.csv; default: the slice shipped beside this
file. UNIT is what a benchmark's "to converge" list counts: examples, epochs:EXAMPLES_PER_EPOCH,
tokens:TOKENS_PER_EXAMPLE or steps. VALUE is the distance between two evaluations in that unit: the published
number is the evaluation at which the target was met, so the crossing lies in the spacing before it.

The first B_crit takes the published numbers as exact, as every published fit does; the second counts the
evaluation spacing, where it is declared.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from gasweep.analysis.power_law import fit_power_law
from gasweep.analysis.sources import SourceOptions, read_source
from gasweep.analysis.study import TargetReport, fit_study

HERE = Path(__file__).parent / "data"

UNITS = {
    "bert": "examples",
    "flux1": "examples",
    "gpt3": "tokens:2048",
    "gpt_oss_20b": "examples",
    "llama2_70b_lora": "examples",
    "llama31_405b": "examples",
    "llama31_8b": "examples",
    "resnet": "epochs:1281167",
    "ssd": "epochs:1170301",
    "stable_diffusion": "examples",
    "unet3d": "examples",
}
"""What the lists count, by the benchmark's rules (github.com/mlcommons/training_policies)."""

SPACINGS = {
    "bert": 25000.0,
    "flux1": 262144.0,
    "gpt3": 24576.0 * 2048.0,
    "gpt_oss_20b": 12288.0,
    "llama2_70b_lora": 384.0,
    "llama31_405b": 46080.0,
    "llama31_8b": 12288.0,
    "ssd": 1.0,
    "stable_diffusion": 512000.0,
}
"""Distance between two evaluations, in the list's unit, by the same rules."""

ZHANG_MODELS = {"85M": 85e6, "151M": 151e6, "302M": 302e6}
ZHANG_BASE = 256.0
"""Sequences per step from which Zhang et al. count perfect scaling in their 20 % batch size."""


def options_for(benchmark: str, unit: str) -> SourceOptions:
    name, _, factor = unit.partition(":")
    return SourceOptions(
        kind="mlperf",
        progress_unit=name,
        examples_per_epoch=float(factor) if name == "epochs" else None,
        tokens_per_example=float(factor) if name == "tokens" else None,
    )


def mlperf_rows(directory: Path, units: dict[str, str], spacings: dict[str, float]) -> list[list[str]]:
    rows = []
    for path in sorted(directory.glob("*.json")):
        benchmark = next(iter(json.loads(path.read_text(encoding="utf-8")).values()))["Benchmark"]
        if benchmark not in units:
            rows.append([benchmark, "", "", "unit not declared (--unit)", "", ""])
            continue
        options = options_for(benchmark, units[benchmark])
        report = fit_study(read_source(path, options).runs).targets[0]
        spaced = "spacing not declared"
        if benchmark in spacings:
            spaced_options = replace(options, evaluation_spacing=spacings[benchmark])
            spaced_report = fit_study(read_source(path, spaced_options).runs).targets[0]
            spaced = str(spaced_report.fit.critical_batch_size)
        rows.append(row(benchmark, report, spaced))
    return rows


def row(name: str, report: TargetReport, spaced: str = "") -> list[str]:
    seeds = sum(len(batch.choice.winner.observations) for batch in report.batches if batch.choice.winner)
    return [
        name,
        str(len(report.batches)),
        str(seeds),
        str(report.fit.critical_batch_size),
        spaced,
        "; ".join(report.flags) or "-",
    ]


def zhang_reports(path: Path) -> dict[str, TargetReport]:
    columns = {"batch_size": "batch_size_seqs", "progress": "steps_used_in_authors_fit"}
    options = SourceOptions(progress_unit="steps", columns=columns)
    return {
        model: fit_study(
            read_source(path, replace(options, where={"model": model})).runs, base_batch_size=ZHANG_BASE
        ).targets[0]
        for model in ZHANG_MODELS
    }


def print_table(rows: list[list[str]]) -> None:
    header = ["benchmark", "batches", "seeds", "B_crit (examples)", "evaluation spacing counted", "flags"]
    widths = [max(len(line[k]) for line in [header, *rows]) for k in range(5)]
    for line in [header, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, [*widths, 0], strict=True)).rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", nargs="?", type=Path, default=HERE)
    parser.add_argument("--unit", action="append", default=[], metavar="BENCHMARK=UNIT")
    parser.add_argument("--spacing", action="append", default=[], metavar="BENCHMARK=VALUE")
    options = parser.parse_args()
    units = UNITS | dict(item.split("=", 1) for item in options.unit)
    spacings = SPACINGS | {
        name: float(value) for name, value in (item.split("=", 1) for item in options.spacing)
    }
    reports = zhang_reports(options.directory / "zhang2024_steps_to_target.csv")
    rows = mlperf_rows(options.directory / "mlperf_rcp", units, spacings)
    rows += [row(f"Zhang {model}", report) for model, report in reports.items()]
    print_table(rows)
    print(f"\n20 % batch size of Zhang et al. (1.2 B0 + 0.2 B_crit, B0 = {ZHANG_BASE:g} sequences):")
    for model, report in reports.items():
        print(f"  {model:<5} {report.fit.critical_batch_size_20pct}")
    law = fit_power_law([(ZHANG_MODELS[m], r.fit.critical_batch_size) for m, r in reports.items()])
    print(f"B_crit ~ parameters ** {law.exponent}")


if __name__ == "__main__":
    main()
