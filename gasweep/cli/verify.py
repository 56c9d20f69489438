"""Are the layouts (b, N, G) of one effective batch really the same run? Takes one optimizer step in several
of them from common parameters and compares gradients, losses and updated parameters: equal bits, equal to
rounding, or different, and then why. Exit code 1 when different. Works on your own task."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gasweep.cli.output import print_json, print_lines, print_table
from gasweep.cli.prepare import prepare
from gasweep.errors import ConfigError

if TYPE_CHECKING:
    from gasweep.training.verify.compare import Pair
    from gasweep.training.verify.report import Verification

VERDICTS = {
    "bitwise": "equal, bit for bit",
    "rounding": "equal to rounding",
    "different": "DIFFERENT",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG|DIR", help="a YAML file, or the directory of a sweep")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="e.g. determinism=bitwise strategy=fsdp"
    )
    parser.add_argument(
        "--effective-batch-size", type=int, metavar="B", help="of the grid; default: its smallest"
    )
    parser.add_argument(
        "--max-world-size", type=int, default=2, metavar="N", help="most ranks, started here (default 2)"
    )
    parser.add_argument(
        "--max-layouts", type=int, default=8, metavar="COUNT", help="most layouts compared (default 8)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default cpu)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def main(arguments: argparse.Namespace) -> int:
    for name, least in (("max_world_size", 1), ("max_layouts", 2)):
        if getattr(arguments, name) < least:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option}={getattr(arguments, name)} must be >= {least}")
    prepared = prepare(arguments.config, arguments.overrides)

    from gasweep.training.verify.verify import verify

    answer = verify(
        prepared.config,
        effective_batch_size=arguments.effective_batch_size,
        max_world_size=arguments.max_world_size,
        max_layouts=arguments.max_layouts,
        device=arguments.device,
    )
    if arguments.json:
        print_json(answer.to_dict())
    else:
        _print(answer)
    return answer.exit_code


def _print(answer: Verification) -> None:
    print_lines(
        [
            f"one optimizer step of B={answer.effective_batch_size} from common parameters, in "
            f"{len(answer.layouts)} layouts (b x N x G)",
            "",
        ]
    )
    if answer.pairs:
        header = ["layouts", "gradient differs by", "rounding bound", "of", "loss", "parameters", "verdict"]
        print_table(header, [_row(pair) for pair in answer.pairs])
    if answer.reference_deviation is not None:
        print_lines(
            ["", f"farthest from the float64 gradient of the whole batch: {answer.reference_deviation:.1e}"]
        )
    print_lines(["", *answer.notes, *(f"cause: {cause}" for cause in answer.causes)])
    print_lines([f"B={answer.effective_batch_size}: {VERDICTS[answer.equal]}"])


def _row(pair: Pair) -> list[str]:
    return [
        f"{pair.first} ~ {pair.second}",
        f"{pair.gradient_deviation:.1e}",
        "-" if pair.gradient_bound is None else f"{pair.gradient_bound:.1e}",
        f"{pair.gradient_scale:.1e}",
        f"{pair.loss_deviation:.1e}",
        f"{pair.parameter_deviation:.1e}",
        VERDICTS[pair.equal],
    ]
