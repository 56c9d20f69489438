"""`python -m gasweep.training`: one point without Ray, alone and under torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gasweep.cli.prepare import prepare
from gasweep.config.load import load_sweep_config, parse_sweep_config
from gasweep.errors import ConfigError
from gasweep.training.__main__ import first_point, main

CONFIG = """
task: {_target_: tests.training.toys.ToyRegression}
grid:
  micro_batch_size: [4]
  world_size: [1, 2]
  accumulation_steps: [2, 4]
  learning_rate: [0.05]
  seed: [0]
target: {value: 1.0}
budget: {max_optimizer_steps: 5}
checkpoint: {every_optimizer_steps: 2}
"""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "point.yaml"
    path.write_text(CONFIG)
    return str(path)


def test_trains_the_first_point_that_fits_and_says_which(config: str, capsys: Any) -> None:
    assert main([config]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["state"] == "censored"
    assert result["layout"] == {"micro_batch_size": 4, "world_size": 1, "accumulation_steps": 2}
    assert "b x N x G = 4x1x2: effective batch size 8" in printed.err
    assert "the first of 4 grid points that fits" in printed.err
    assert "optimizer step       5  eval_loss" in printed.err


def test_the_run_is_the_one_that_a_sweep_of_the_config_has(config: str) -> None:
    sweep = load_sweep_config(config, [])
    spec, _ = first_point(sweep, world_size=1)
    assert spec.run_id in {run.run_id for run in prepare(config).plan.runs}


def test_overrides_choose_another(config: str, capsys: Any) -> None:
    assert main([config, "grid.accumulation_steps=4", "grid.world_size=1"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["layout"]["accumulation_steps"] == 4
    assert "grid points" not in printed.err


def test_errors_are_one_line_and_exit_2(config: str, capsys: Any) -> None:
    assert main([config, "gird.seed=1"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "gird" in printed.err
    with pytest.raises(ConfigError, match="gird"):
        main([config, "gird.seed=1", "--debug"])


def test_a_grid_without_a_point_for_these_processes_is_refused() -> None:
    sweep = parse_sweep_config(
        {
            "task": {"_target_": "gasweep.tasks.Digits"},
            "grid": {"micro_batch_size": [4], "world_size": [2, 4]},
        },
        [
            "grid.accumulation_steps=1",
            "grid.learning_rate=0.1",
            "grid.seed=0",
            "target.value=1",
            "budget.max_examples=9",
        ],
    )
    with pytest.raises(ConfigError, match=r"grid.world_size=\[2, 4\] has no point for the 1 process"):
        first_point(sweep, world_size=1)


def test_a_ramp_is_refused_not_ignored(config: str, capsys: Any) -> None:
    assert main([config, "ramp=stages.yaml"]) == 2
    assert "ramp='stages.yaml'" in capsys.readouterr().err


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@pytest.mark.multiprocess
def test_under_torchrun_the_processes_are_the_ranks(config: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--standalone", "-m", "gasweep.training", config, "grid.accumulation_steps=2"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(), cwd=ROOT, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["layout"]["world_size"] == 2


@pytest.mark.fault
def test_an_interrupt_leaves_a_checkpoint_that_a_second_call_continues(config: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "gasweep.training", config, "--run-directory", str(folder)]
    long = [*command, "grid.world_size=1", "budget.max_optimizer_steps=1000000", "target.value=0.0"]
    process = subprocess.Popen(long, env=environment(), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(folder.glob("checkpoints/0*")):
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "was asked to stop at optimizer step" in said
    last = max(int(path.name) for path in folder.glob("checkpoints/0*"))
    short = [*long[:-2], f"budget.max_optimizer_steps={last + 3}", "target.value=0.0"]
    done = subprocess.run(
        short, capture_output=True, text=True, env=environment(), cwd=ROOT, timeout=120, check=True
    )
    assert json.loads(done.stdout)["optimizer_steps"] == last + 3
    assert "optimizer step       0" not in done.stderr
