import dataclasses
import json

import pytest

from gasweep.cli.main import main
from gasweep.config import load_sweep_config, plan_sweep
from gasweep.config.load import config_to_yaml
from tests.results.planted import CRITICAL, plant, planted_config

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


@pytest.fixture
def swept(tmp_path):
    """A finished sweep whose best rate is 0.1 at every batch size, under a config with a base of its own."""
    directory = plant(tmp_path / "swept")
    config = planted_config()
    grid = {"micro_batch_size": [8], "world_size": [1], "effective_batch_size": [8], "learning_rate": [0.05]}
    scaling = dataclasses.replace(
        config.learning_rate_scaling, rule="sqrt", base_learning_rate=7.0, base_batch_size=8
    )
    config.budget.max_optimizer_steps = 1000
    config = dataclasses.replace(config, grid=grid, learning_rate_scaling=scaling)
    (directory / "sweep.yaml").write_text(config_to_yaml(config))
    return directory


def sized(capsys, *words):
    assert main(["size", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_sweep_gives_b_crit_and_its_best_rate_comes_before_the_configs_base(swept, capsys):
    said = sized(capsys, swept, "--micro-batch-size", 8, "--world-size", 1)
    assert said["effective_batch_size"] == pytest.approx(CRITICAL, rel=0.1)
    ratio = said["effective_batch_size"] / 64
    assert said["learning_rate"] == pytest.approx(0.1 * ratio**0.5)  # from B = 64, by the config's rule
    assert any("the sweep's best rate there" in reason for reason in said["reasons"])


def test_between_swept_batches_the_configs_own_rule_scales(swept, capsys):
    said = sized(capsys, swept, "--effective-batch-size", 1000, "--micro-batch-size", 8, "--world-size", 1)
    assert said["learning_rate"] == pytest.approx(0.1 * (1000 / 512) ** 0.5)
    assert any("sqrt scaling, as the config's learning_rate_scaling says" in r for r in said["reasons"])


def test_a_given_rate_comes_before_the_sweeps(swept, capsys):
    words = ["--effective-batch-size", 32, "--micro-batch-size", 8, "--world-size", 1]
    said = sized(capsys, swept, *words, "--learning-rate", 0.4, "--base-batch-size", 8)
    assert said["learning_rate"] == pytest.approx(0.4 * 2)


def test_the_config_it_writes_leaves_nothing_to_say(swept, tmp_path, capsys):
    out = tmp_path / "sized.yaml"
    said = sized(capsys, swept, "--micro-batch-size", 8, "--world-size", 1, "--out", out)
    plan = plan_sweep(load_sweep_config(out))
    assert plan.notes == []
    (point,) = plan.points
    assert point.learning_rate == pytest.approx(said["learning_rate"])
