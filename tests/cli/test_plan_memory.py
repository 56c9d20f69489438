import json

import pytest

from gasweep.cli.main import main

CONFIG = """
name: small
task: {_target_: gasweep.tasks.FashionMnist, hidden: 64}
optimizer: {name: adamw}
strategy: fsdp
grid: {micro_batch_size: [8, 16], world_size: [1, 2], accumulation_steps: [2], learning_rate: [0.1]}
target: {value: 0.5}
budget: {max_examples: 100000}
"""
NUM_BYTES = 4 * (784 * 64 + 64 + 64 * 10 + 10)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def test_each_layout_is_counted(config, capsys):
    assert main(["plan", str(config), "--memory", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["memory"]
    assert [(row["micro_batch_size"], row["world_size"]) for row in rows] == [
        (8, 1),
        (8, 2),
        (16, 1),
        (16, 2),
    ]
    alone, sharded = rows[0], rows[1]
    assert (alone["strategy"], sharded["strategy"]) == ("single", "fsdp")
    assert alone["parameters_bytes"] == alone["gradients_bytes"] == NUM_BYTES
    assert alone["optimizer_bytes"] == 2 * NUM_BYTES
    assert sharded["parameters_bytes"] == NUM_BYTES // 2
    assert sharded["gradients_bytes"] == NUM_BYTES  # whole between micro-steps
    assert rows[2]["activations_bytes"] > 1.8 * alone["activations_bytes"]


def test_the_table_says_what_it_counts(config, capsys):
    assert main(["plan", str(config), "--memory"]) == 0
    out = capsys.readouterr().out
    assert "8x2x2" in out
    assert "memory: tensors of one rank" in out


def test_a_plan_without_it_has_no_such_key(config, capsys):
    assert main(["plan", str(config), "--json"]) == 0
    assert "memory" not in json.loads(capsys.readouterr().out)
