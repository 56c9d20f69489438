"""Estimate the critical batch size, the least steps and the least examples, with 95 % intervals."""

from __future__ import annotations

import argparse

from gasweep.cli.answer import answer_of
from gasweep.cli.output import print_json, print_lines
from gasweep.cli.prepare import require_sweep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="the directory of a sweep")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def main(arguments: argparse.Namespace) -> int:
    answer = answer_of(require_sweep(arguments.source), plot=False)
    if arguments.json:
        print_json({"targets": answer.to_dict()["targets"]})
    else:
        print_lines(answer.estimates())
    return 0
