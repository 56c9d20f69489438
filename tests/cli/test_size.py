import json

import pytest

from gasweep.cli.main import main
from gasweep.config import load_sweep_config, plan_sweep

CONFIG = """
name: small
task: {_target_: gasweep.tasks.NoisyQuadratic}
learning_rate_scaling: {rule: none, base_batch_size: 16, base_learning_rate: 0.1}
grid: {micro_batch_size: [8, 48], world_size: [7], learning_rate: [0.1]}
target: {value: 0.5}
budget: {max_examples: 100000}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def test_the_published_example(capsys):
    words = "size --effective-batch-size 4096 --micro-batch-size 8 --world-size 64 --json"
    assert main(words.split()) == 0
    assert json.loads(capsys.readouterr().out)["accumulation_steps"] == 8


def test_the_config_it_writes_runs_what_it_says(config, tmp_path, capsys):
    out = tmp_path / "sized.yaml"
    assert main(["size", str(config), "--effective-batch-size", "1000", "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (point,) = plan_sweep(load_sweep_config(out)).points
    assert point.effective_batch_size == said["effective_batch_size"] == 1000
    assert point.layout.accumulation_steps == said["accumulation_steps"] == 3
    assert point.learning_rate == pytest.approx(0.1 * 1000 / 16)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "no target batch"),
        ("--effective-batch-size 64", "--micro-batch-size is missing"),
        ("--effective-batch-size 64 --micro-batch-size 8", "--world-size is missing"),
        ("--effective-batch-size 0 --micro-batch-size 8 --world-size 2", "--effective-batch-size=0"),
        ("--noise-scale nan --micro-batch-size 8 --world-size 2", "--noise-scale=nan"),
        ("--effective-batch-size 2 --micro-batch-size 8 --world-size 4", "world_size=4"),
        (
            "--effective-batch-size 8 --micro-batch-size 8 --world-size 1 --learning-rate 0.1",
            "belong together",
        ),
        ("--effective-batch-size 8 --micro-batch-size 8 --world-size 1 --out x.yaml", "--out needs a CONFIG"),
    ],
)
def test_what_is_missing_or_wrong_is_one_line(words, text, capsys):
    assert main(["size", *words.split()]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_a_noise_scale_is_taken_with_a_warning(capsys):
    assert main(["size", "--noise-scale", "512", "--micro-batch-size", "8", "--world-size", "2"]) == 0
    assert "proxy for B_crit" in capsys.readouterr().out
