"""Interrupted, killed or moved runs continue as if nothing had happened, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gasweep.config.run_spec import RunSpec
from gasweep.errors import UserError
from gasweep.results.states import RunState
from gasweep.training import Interrupted
from tests.training.ranks import run_on_ranks
from tests.training.toys import toy_spec, train_toy

ADAMW: dict[str, Any] = {
    "optimizer": {"name": "adamw", "weight_decay": 0.01, "max_grad_norm": 1.0},
    "schedule": {"name": "cosine", "warmup_optimizer_steps": 3, "horizon_examples": 400},
    "arguments": {"dropout": 0.2},
    "learning_rate": 0.01,
    "max_optimizer_steps": 30,
}


def interrupted_then_resumed(spec: RunSpec, folder: Path, *, stops: list[int]) -> tuple[Any, list[Any]]:
    """The result after stopping at each of `stops` polls, and the step records of the last attempt."""
    for stop_after in stops:
        with pytest.raises(Interrupted, match="was asked to stop"):
            train_toy(spec=spec, run_directory=folder, stop_after=stop_after)
    result, records, _ = train_toy(spec=spec, run_directory=folder)
    return result, records


def assert_same_end(result: Any, undisturbed: Any) -> None:
    assert result.parameter_sha256 == undisturbed.parameter_sha256
    assert result.evaluations == undisturbed.evaluations
    assert result.state == undisturbed.state
    assert result.reason == undisturbed.reason
    assert result.contributions == undisturbed.contributions
    assert result.attempted_optimizer_steps == undisturbed.attempted_optimizer_steps


@pytest.mark.parametrize("stops", [[3], [1], [29], [3, 5, 11]])
def test_c11_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, stops: list[int]) -> None:
    """64 samples, b=2, G=4, stopped after update 3, and in later epochs."""
    spec = toy_spec(layout=(2, 1, 4), **ADAMW)
    undisturbed, records, _ = train_toy(spec=spec)
    result, tail = interrupted_then_resumed(spec, tmp_path, stops=stops)
    assert_same_end(result, undisturbed)
    expected = {r.optimizer_step: (r.loss, r.learning_rate, r.contributions) for r in records}
    for record in tail:
        assert (record.loss, record.learning_rate, record.contributions) == expected[record.optimizer_step]
    assert tail[0].optimizer_step == sum(stops) + 1


@pytest.mark.parametrize("optimizer", [{"name": "sgd"}, {"name": "sgd", "momentum": 0.9}, {"name": "adam"}])
def test_optimizer_state_survives(tmp_path: Path, optimizer: dict[str, Any]) -> None:
    spec = toy_spec(**{**ADAMW, "optimizer": optimizer})
    result, _ = interrupted_then_resumed(spec, tmp_path, stops=[4])
    assert_same_end(result, train_toy(spec=spec)[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_fp32_main_parameters_survive(tmp_path: Path, dtype: str) -> None:
    spec = toy_spec(**{**ADAMW, "arguments": {"dtype": dtype}})
    result, _ = interrupted_then_resumed(spec, tmp_path, stops=[4])
    assert_same_end(result, train_toy(spec=spec)[0])


def test_running_statistics_and_the_loss_scale_survive(tmp_path: Path) -> None:
    spec = toy_spec(**{**ADAMW, "arguments": {"batch_norm": True}}, precision="fp16")
    result, _ = interrupted_then_resumed(spec, tmp_path, stops=[4])
    assert_same_end(result, train_toy(spec=spec)[0])


def stop_on_ranks(rank: int, *, spec: RunSpec, folder: Path, stop_after: int) -> str:
    try:
        train_toy(rank, spec=spec, run_directory=folder, stop_after=stop_after if rank == 0 else None)
    except Interrupted:
        return "interrupted"
    return "ended"


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_stop_together_and_resume(tmp_path: Path, strategy: str) -> None:
    spec = toy_spec(layout=(2, 2, 2), strategy=strategy, **ADAMW)
    undisturbed = run_on_ranks(2, train_toy, spec=spec)[0][0]
    stopped = run_on_ranks(2, stop_on_ranks, spec=spec, folder=tmp_path, stop_after=7)
    assert stopped == ["interrupted"] * 2
    result, records, _ = run_on_ranks(2, train_toy, spec=spec, run_directory=tmp_path)[0]
    assert_same_end(result, undisturbed)
    assert records[0].optimizer_step == 8


@pytest.mark.multiprocess
@pytest.mark.parametrize("before", ["single", "ddp", "fsdp"])
@pytest.mark.parametrize("after", ["single", "ddp", "fsdp"])
def test_a_run_may_move_to_other_ranks_and_strategies(tmp_path: Path, before: str, after: str) -> None:
    """In float64 a moved run ends where an undisturbed one does, to rounding."""
    common: dict[str, Any] = {**ADAMW, "arguments": {"dtype": "float64"}, "precision": "fp64"}
    specs = {
        "single": toy_spec(layout=(4, 1, 2), **common),
        "ddp": toy_spec(layout=(2, 2, 2), strategy="ddp", **common),
        "fsdp": toy_spec(layout=(1, 2, 4), strategy="fsdp", **common),
    }
    ranks = {"single": 1, "ddp": 2, "fsdp": 2}
    run_on_ranks(ranks[before], stop_on_ranks, spec=specs[before], folder=tmp_path, stop_after=9)
    result, records, _ = run_on_ranks(ranks[after], train_toy, spec=specs[after], run_directory=tmp_path)[0]
    assert records[0].optimizer_step == 10
    undisturbed = train_toy(spec=specs["single"])[0]
    for found, expected in zip(result.evaluations, undisturbed.evaluations, strict=True):
        assert found.metrics["eval_loss"] == pytest.approx(expected.metrics["eval_loss"], rel=1e-9)


def folders(run_directory: Path) -> list[Path]:
    return sorted((run_directory / "checkpoints").iterdir())


def damage_tensors(folder: Path) -> None:
    path = folder / "tensors.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def truncate_meta(folder: Path) -> None:
    path = folder / "checkpoint.json"
    path.write_bytes(path.read_bytes()[:40])


def remove_tensors(folder: Path) -> None:
    (folder / "tensors.pt").unlink()


@pytest.mark.parametrize("damage", [damage_tensors, truncate_meta, remove_tensors])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, damage: Any) -> None:
    spec = toy_spec(checkpoint={"every_optimizer_steps": 4}, **ADAMW)
    with pytest.raises(Interrupted):
        train_toy(spec=spec, run_directory=tmp_path, stop_after=9)
    assert [folder.name for folder in folders(tmp_path)] == ["000000000008", "000000000009"]
    damage(folders(tmp_path)[-1])
    with pytest.warns(UserWarning, match="000000000009 is passed over"):
        result, records, _ = train_toy(spec=spec, run_directory=tmp_path)
    assert records[0].optimizer_step == 9
    assert_same_end(result, train_toy(spec=spec)[0])


def test_a_damaged_checkpoint_is_written_anew_and_later_ones_do_not_crowd_it_out(tmp_path: Path) -> None:
    spec = toy_spec(**ADAMW)
    with pytest.raises(Interrupted):
        train_toy(spec=spec, run_directory=tmp_path, stop_after=5)
    for steps in (5, 20, 21):
        stale = tmp_path / "checkpoints" / f"{steps:012d}"
        shutil.rmtree(stale, ignore_errors=True)
        stale.mkdir()
    with pytest.warns(UserWarning, match="passed over"), pytest.raises(Interrupted):
        train_toy(spec=spec, run_directory=tmp_path, stop_after=5)
    assert [folder.name for folder in folders(tmp_path)] == ["000000000005"]
    result, records, _ = train_toy(spec=spec, run_directory=tmp_path)
    assert records[0].optimizer_step == 6
    assert_same_end(result, train_toy(spec=spec)[0])


def test_an_unfinished_folder_is_ignored_and_cleared(tmp_path: Path) -> None:
    spec = toy_spec(**ADAMW)
    with pytest.raises(Interrupted):
        train_toy(spec=spec, run_directory=tmp_path, stop_after=5)
    torn = tmp_path / "checkpoints" / ".writing-000000000012"
    shutil.copytree(folders(tmp_path)[0], torn)
    (torn / "checkpoint.json").unlink()
    result, records, _ = train_toy(spec=spec, run_directory=tmp_path)
    assert records[0].optimizer_step == 6
    assert_same_end(result, train_toy(spec=spec)[0])
    assert not torn.exists()


def test_another_runs_checkpoint_is_not_continued(tmp_path: Path) -> None:
    spec = toy_spec(**ADAMW)
    with pytest.raises(Interrupted):
        train_toy(spec=spec, run_directory=tmp_path, stop_after=5)
    with pytest.warns(UserWarning, match="run toy"):
        _, records, _ = train_toy(spec=dataclasses.replace(spec, run_id="other"), run_directory=tmp_path)
    assert records[0].optimizer_step == 1


def test_a_changed_model_is_refused_in_one_line(tmp_path: Path) -> None:
    spec = toy_spec(**ADAMW)
    with pytest.raises(Interrupted):
        train_toy(spec=spec, run_directory=tmp_path, stop_after=5)
    changed = toy_spec(**{**ADAMW, "arguments": {"width": 16}})
    with pytest.raises(UserError, match=r"does not fit this run .* remove it to start the run again"):
        train_toy(spec=changed, run_directory=tmp_path)


def test_a_finished_run_leaves_no_checkpoint_and_a_censored_one_may_go_on(tmp_path: Path) -> None:
    """A larger budget continues a censored run, which then equals one that had it from the start."""
    reached = toy_spec(target={"value": 3.0}, **{**ADAMW, "max_optimizer_steps": 200})
    result, _, _ = train_toy(spec=reached, run_directory=tmp_path / "reached")
    assert result.state is RunState.REACHED
    assert not (tmp_path / "reached" / "checkpoints").exists()
    short = toy_spec(**{**ADAMW, "max_optimizer_steps": 11})
    result, _, _ = train_toy(spec=short, run_directory=tmp_path / "censored")
    assert result.state is RunState.CENSORED
    whole = toy_spec(**ADAMW)
    result, records, _ = train_toy(spec=whole, run_directory=tmp_path / "censored")
    assert records[0].optimizer_step == 12
    assert_same_end(result, train_toy(spec=whole)[0])


def test_meta_is_plain_json_with_a_digest_of_every_file(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train_toy(spec=toy_spec(**ADAMW), run_directory=tmp_path, stop_after=5)
    folder = folders(tmp_path)[0]
    meta = json.loads((folder / "checkpoint.json").read_text())
    assert meta["progress"]["attempted"] == 5
    assert set(meta["files"]) == {path.name for path in folder.iterdir()} - {"checkpoint.json"}
