"""The sizing recipe, with its reasoning: an effective batch size at or just below B_crit, the largest
micro-batch that fits, the ranks there are, G = B / (b·N), a learning rate and a warm-up from a baseline known
to be good. Every quantity is a flag; what is not given comes from the sweep, the config, or a measurement."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from gasweep.analysis.sizing import Baseline, Sizing, size_run
from gasweep.cli.output import print_json, print_lines
from gasweep.cli.prepare import Prepared, prepare
from gasweep.cli.size_config import sized_config
from gasweep.cli.size_doubts import budget_doubts, differences
from gasweep.cli.size_flags import SizeContext, refuse_contradictions, unused_flags
from gasweep.cli.size_setting import one_setting
from gasweep.cli.size_sweep import SweepAnswer, sweep_answer
from gasweep.config.load import config_to_yaml
from gasweep.errors import ConfigError
from gasweep.report.numbers import memory

if TYPE_CHECKING:
    from gasweep.training.memory.probe import MemoryProbe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", metavar="CONFIG|DIR", help="a config, or a sweep's directory")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the config")
    parser.add_argument("--effective-batch-size", type=int, metavar="B", help="the target batch")
    parser.add_argument("--critical-batch-size", type=float, metavar="X", help="from elsewhere")
    parser.add_argument("--noise-scale", type=float, metavar="X", help="in examples; a proxy, with a warning")
    parser.add_argument("--micro-batch-size", type=int, metavar="b", help="the largest that fits")
    parser.add_argument("--probe-memory", action="store_true", help="measure the largest b that fits, here")
    parser.add_argument("--world-size", type=int, metavar="N", help="ranks there are")
    parser.add_argument("--optimizer", choices=("sgd", "adam", "adamw"), help="default: the config's")
    parser.add_argument("--learning-rate", type=float, metavar="LR", help="a rate known to be good ...")
    parser.add_argument("--base-batch-size", type=int, metavar="B0", help="... at this effective batch size")
    parser.add_argument("--dataset-examples", type=int, metavar="D", help="for SGD's warm-up (5 epochs)")
    parser.add_argument(
        "--nearest", action="store_true", help="move B to a multiple of b·N instead of keeping it"
    )
    parser.add_argument("--out", metavar="FILE", help="write a config that `gasweep run` takes")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def main(arguments: argparse.Namespace) -> int:
    prepared = prepare(arguments.config, arguments.overrides) if arguments.config else None
    if arguments.out and prepared is None:
        raise ConfigError("--out needs a CONFIG to start from; give one")
    refuse_contradictions(arguments, prepared.config if prepared else None)
    notes: list[str] = []
    doubts: list[str] = []
    found = _sweep(Path(arguments.config), prepared, notes, doubts) if prepared else None
    total = _batch(arguments, found, notes, doubts)
    context = _context(arguments, prepared, found, total)
    sizing = size_run(
        effective_batch_size=total,
        largest_micro_batch_size=_micro_batch(arguments, prepared, notes),
        world_size=_world_size(arguments, prepared),
        allow_incomplete_groups=not arguments.nearest,
        optimizer=context.optimizer,
        baseline=context.baseline,
        critical_batch_size=_knee(arguments, prepared, found),
        rule=context.rule,
        beta2=prepared.config.optimizer.betas[1] if prepared else 0.999,
        epoch_examples=_examples(arguments),
        planned_optimizer_steps=found.steps(total) if found else None,
    )
    notes += unused_flags(arguments, context, sizing)
    if prepared is not None:
        expected = found.steps(sizing.effective_batch_size) if found else None
        doubts += budget_doubts(sizing, prepared.config.budget, expected_steps=expected)
    sizing = dataclasses.replace(sizing, warnings=[*doubts, *sizing.warnings])
    if arguments.out and prepared is not None:
        notes += _write(sizing, prepared, Path(arguments.out))
    if arguments.json:
        print_json(sizing.to_dict() | {"reasons": [*notes, *sizing.reasons]})
    else:
        _print(sizing, notes, arguments.out)
    return 0


def _context(
    arguments: argparse.Namespace, prepared: Prepared | None, found: SweepAnswer | None, total: int
) -> SizeContext:
    scaling = prepared.config.learning_rate_scaling if prepared else None
    return SizeContext(
        optimizer=arguments.optimizer or (prepared.config.optimizer.name if prepared else "sgd"),
        rule=scaling.rule if scaling and scaling.rule != "none" else None,
        baseline=_baseline(arguments, prepared, found, total),
    )


def _knee(
    arguments: argparse.Namespace, prepared: Prepared | None, found: SweepAnswer | None
) -> float | None:
    """Where linear scaling of the rate ends: as given, else the config's knee, else the sweep's B_crit."""
    if arguments.critical_batch_size is not None:
        return _positive("--critical-batch-size", arguments.critical_batch_size)
    if prepared is not None and prepared.config.learning_rate_scaling.rule == "knee":
        return prepared.config.learning_rate_scaling.knee_batch_size
    return found.critical_batch_size if found else None


def _sweep(source: Path, prepared: Prepared, notes: list[str], doubts: list[str]) -> SweepAnswer | None:
    """What the sweep that `source` names, or that a config's own sweep would be, has found.

    A sweep of something else than the config is taken only where its directory was named, with a warning.
    """
    found = sweep_answer(prepared.directory, one_setting(prepared.config))
    changed = differences(prepared.directory, prepared.plan.config) if found else []
    if not changed:
        return found
    other = f"{prepared.directory} is a sweep of something else ({'; '.join(changed)})"
    if source.is_dir():
        doubts.append(f"{other}: what it found need not hold here")
        return found
    notes.append(f"{other}: nothing is taken from it; name the directory to use it all the same")
    return None


def _batch(
    arguments: argparse.Namespace, found: SweepAnswer | None, notes: list[str], doubts: list[str]
) -> int:
    """What is given comes before what a sweep found, whichever flag it is."""
    given = _given_batch(arguments, notes, doubts)
    if found is not None:
        over = "" if given is None else "; B is what the flags say, not this"
        notes.insert(0, found.note + over)
    if given is not None:
        return given
    if found is not None and found.critical_batch_size is not None:
        return _just_below(found.critical_batch_size, notes)
    raise ConfigError(
        "no target batch: give --effective-batch-size, --critical-batch-size, --noise-scale, or the "
        "directory of a sweep that found B_crit"
    )


def _given_batch(arguments: argparse.Namespace, notes: list[str], doubts: list[str]) -> int | None:
    if arguments.effective_batch_size is not None:
        return int(_positive("--effective-batch-size", arguments.effective_batch_size))
    if arguments.critical_batch_size is not None:
        return _just_below(_positive("--critical-batch-size", arguments.critical_batch_size), notes)
    if arguments.noise_scale is None:
        return None
    total = max(1, int(_positive("--noise-scale", arguments.noise_scale)))
    doubts.append(
        "B is put at the gradient noise scale: a proxy for B_crit that the literature finds anywhere "
        "from ten times too high to orders too low; a sweep would tell"
    )
    return total


def _just_below(critical_batch_size: float, notes: list[str]) -> int:
    notes.append("B is put just below B_crit: there a step is used about half as well as at small B")
    return max(1, int(critical_batch_size))


def _micro_batch(arguments: argparse.Namespace, prepared: Prepared | None, notes: list[str]) -> int:
    if arguments.micro_batch_size is not None:
        return int(_positive("--micro-batch-size", arguments.micro_batch_size))
    if prepared is None:
        raise ConfigError("--micro-batch-size is missing: give the largest that fits, or a CONFIG to probe")
    if not arguments.probe_memory:
        largest = max(run.layout.micro_batch_size for run in [*prepared.plan.runs, *prepared.plan.probes])
        notes.append(f"b <= {largest}: the grid's largest; --probe-memory measures what fits")
        return largest
    from gasweep.training.memory.probe import local_devices, probe_largest_micro_batch

    device, count = local_devices()
    world_size = _world_size(arguments, prepared)
    tried = min(world_size, count)
    found = probe_largest_micro_batch(prepared.plan, world_size=tried, resolution=0.05, device=device)
    if found.search.largest is None:
        raise ConfigError(
            "not even micro_batch_size=1 fits: use a smaller model, or shard it (strategy=fsdp)"
        )
    ranks = (
        f"on {tried} rank(s)"
        if tried == world_size
        else f"on {tried} of the {world_size} ranks, all there are here"
    )
    notes.append(f"b <= {found.search.largest}: measured {ranks}, {_what_fitted(found)}")
    return found.search.largest


def _what_fitted(found: MemoryProbe) -> str:
    largest = found.search.largest
    assert largest is not None
    peak = found.peak_bytes.get(largest)
    text = "two whole optimizer steps" + (f" held {memory(peak)} a rank" if peak is not None else "")
    if found.limit_bytes is not None:
        text += f", of {memory(found.limit_bytes)} allowed"
    return text + ("; larger ones were not tried" if found.search.reached_limit else "")


def _world_size(arguments: argparse.Namespace, prepared: Prepared | None) -> int:
    if arguments.world_size is not None:
        return int(_positive("--world-size", arguments.world_size))
    if prepared is None:
        raise ConfigError("--world-size is missing: give the number of ranks there are")
    return max(point.layout.world_size for point in prepared.plan.points)


def _baseline(
    arguments: argparse.Namespace, prepared: Prepared | None, found: SweepAnswer | None, total: int
) -> Baseline | None:
    """What is given comes first, then what the sweep found, then the config's base."""
    rate, base = arguments.learning_rate, arguments.base_batch_size
    if (rate is None) != (base is None):
        raise ConfigError(
            "--learning-rate and --base-batch-size belong together: a rate is good at some batch"
        )
    warmup = prepared.config.schedule.warmup_optimizer_steps if prepared else 0
    if rate is None and found is not None:
        swept = found.baseline(total, warmup_optimizer_steps=warmup)
        if swept is not None:
            return swept
    if rate is None and prepared is not None:
        scaling = prepared.config.learning_rate_scaling
        rate, base = scaling.base_learning_rate, scaling.base_batch_size
    if rate is None or base is None:
        return None
    return Baseline(
        learning_rate=_positive("--learning-rate", rate),
        effective_batch_size=int(_positive("--base-batch-size", base)),
        warmup_optimizer_steps=warmup,
    )


def _examples(arguments: argparse.Namespace) -> int | None:
    if arguments.dataset_examples is None:
        return None
    return int(_positive("--dataset-examples", arguments.dataset_examples))


def _positive(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name}={value} must be a finite number > 0")
    return value


def _write(sizing: Sizing, prepared: Prepared, path: Path) -> list[str]:
    """Returns what had to be changed for it to run."""
    config, changes = sized_config(sizing, prepared.config)
    path.write_text(config_to_yaml(config))
    return [f"{path} says {change}" for change in changes]


def _print(sizing: Sizing, notes: list[str], out: str | None) -> None:
    b, n, g = sizing.micro_batch_size, sizing.world_size, sizing.accumulation_steps
    lines = [f"B = {sizing.effective_batch_size}: b = {b}, N = {n}, G = {g}"]
    if sizing.learning_rate is not None:
        lines[0] += f", learning rate {sizing.learning_rate:.4g}"
    lines[0] += f", warm-up {sizing.warmup_optimizer_steps} optimizer steps"
    lines += ["", *(f"  {i}. {text}" for i, text in enumerate([*notes, *sizing.reasons], start=1))]
    lines += [f"  ! {text}" for text in sizing.warnings]
    lines += ["", "alternatives", *(f"  - {text}" for text in sizing.alternatives)]
    if out:
        lines += ["", f"written to {out}; `gasweep run {out}` runs it"]
    print_lines(lines)
