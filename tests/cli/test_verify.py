"""`gasweep verify` from a config file: what it prints, its JSON, its exit codes."""

import json

import pytest

from gasweep.cli.main import main

CONFIG = """\
name: verified
task: {_target_: tests.training.toys.ToyRegression, dropout: 0.2}
grid: {micro_batch_size: [4], effective_batch_size: [8], learning_rate: [0.05]}
optimizer: {name: adamw, max_grad_norm: 0.5}
target: {value: 0.1}
budget: {max_optimizer_steps: 5}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return str(path)


@pytest.mark.multiprocess
def test_bitwise_layouts_are_said_to_be_equal_and_exit_0(config, capsys):
    words = ["verify", config, "determinism=bitwise", "grain=2", "--max-world-size", "1", "--json"]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["equal"] == "bitwise"
    assert answer["causes"] == []
    assert all(pair["gradient_deviation"] == 0 for pair in answer["pairs"])


@pytest.mark.multiprocess
def test_different_layouts_exit_1_and_name_the_cause(config, capsys):
    assert main(["verify", config, "--max-world-size", "1", "--max-layouts", "2"]) == 1
    out = capsys.readouterr().out
    assert "8x1x1 ~ 4x1x2" in out
    assert "cause: dropout by rank: 2 (p=0.2)" in out
    assert "with dropout off, the layouts agree to rounding" in out
    assert out.endswith("B=8: DIFFERENT\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--effective-batch-size", "5"],
            "effective_batch_size=5 is not in the grid; its effective batches are 8",
        ),
        (["--max-layouts", "1"], "--max-layouts=1 must be >= 2"),
        (["determinism=bitwise", "grain=3"], "micro_batch_size=4 is not a multiple of grain=3"),
    ],
)
def test_what_cannot_be_verified_exits_2_in_one_line(config, capsys, words, message):
    assert main(["verify", config, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_plan_warns_of_the_model_only_when_asked(config, capsys):
    assert main(["plan", config, "--json"]) == 0
    assert not any("drops out" in note for note in json.loads(capsys.readouterr().out)["notes"])
    assert main(["plan", config, "task.batch_norm=true", "--check-model"]) == 0
    out = capsys.readouterr().out
    assert "model: 1 (BatchNorm1d) normalises over the examples of a group" in out
    assert "model: 3 drops out by rank and micro-step" in out
