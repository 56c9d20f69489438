"""A sweep under FSDP2 on two leased workers: stopped halfway, it goes on as if it had not been."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from integration_sweep import Sweep, mid_run, trajectories

from gasweep.results.reader import JournalReader
from gasweep.results.states import RunState

pytestmark = [pytest.mark.ray, pytest.mark.multiprocess, pytest.mark.timeout(300)]

CONFIG = """
name: sharded
strategy: fsdp
task: {_target_: gasweep.tasks.Digits}
grid:
  micro_batch_size: [8]
  world_size: [2]
  accumulation_steps: [2]
  learning_rate: [0.02]
  seed: [0]
target: {metric: eval_loss, value: 0.18}
budget: {max_optimizer_steps: 4000}
evaluation: {spacing_fraction: 0.05}
sweep: {throughput_probes: false}
cluster: {num_workers: 2}
checkpoint: {every_s: 0.5}
tracking: {wandb: null}
"""


def test_fsdp_reaches_the_target_through_ray_and_resumes_from_sharded_checkpoints(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    Sweep(config, tmp_path / "whole").finish()

    first = Sweep(config, tmp_path / "stopped")
    run_id = first.wait_for(mid_run(first.started_at, steps=(20, 10_000)))
    code, _, output = first.end_with(signal.SIGINT)
    assert code == 130, output
    shards = (tmp_path / "stopped" / "runs" / run_id / "checkpoints").rglob("*.distcp")
    assert {path.name.split("_")[2] for path in shards} == {"0", "1"}, "every rank writes its own shard"
    Sweep(config, tmp_path / "stopped").finish()

    with JournalReader.open(tmp_path / "stopped") as journal:
        assert [run.state for run in journal.runs()] == [RunState.REACHED]
        assert [attempt.cause for attempt in journal.attempts(run_id)] == ["interrupted", "finished"]
    assert trajectories(tmp_path / "stopped") == trajectories(tmp_path / "whole")
