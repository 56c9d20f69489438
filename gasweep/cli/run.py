"""Run a sweep, or resume one: what has a result is never run again. Ctrl-C stops in order (running attempts
write a checkpoint), a second one at once; the same command goes on from there."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG|DIR", help="a YAML file, or the directory of a sweep")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. strategy=single")
    parser.add_argument("--dir", metavar="DIR", help="where the sweep is kept; default: sweeps/<name>")
    parser.add_argument("--retry-failed", action="store_true", help="try failed runs again")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, progress on stderr")


def main(arguments: argparse.Namespace) -> int:
    from gasweep.cli.driving import run_and_answer

    return run_and_answer(arguments)
