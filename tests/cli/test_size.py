import dataclasses
import json
from pathlib import Path

import pytest

from gasweep.analysis.sizing import size_run
from gasweep.cli.main import main
from gasweep.cli.size_setting import hardest_target
from gasweep.cli.size_sweep import answer_from
from gasweep.config import load_sweep_config, plan_sweep
from gasweep.config.load import config_to_yaml
from gasweep.training.memory.probe import MemoryProbe
from gasweep.training.memory.search import SearchResult
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
        ("--effective-batch-size 8 --micro-batch-size 8 --world-size 1 --dataset-examples -5", "examples=-5"),
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
    words = ["size", "--noise-scale", "512", "--micro-batch-size", "8", "--world-size", "2"]
    assert main(words) == 0
    assert "  ! B is put at the gradient noise scale: a proxy for B_crit" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert any("proxy" in text for text in json.loads(capsys.readouterr().out)["warnings"])


def test_a_rate_that_nothing_scales_is_named(config, tmp_path, capsys):
    said = sized(capsys, config, "--effective-batch-size", 64, "--out", tmp_path / "sized.yaml", *BARE)
    assert said["learning_rate"] is None
    assert any("grid.learning_rate: [0.1], as its source does" in reason for reason in said["reasons"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["budget.max_examples=2000"], "max_examples=2000 ends the run after 20 optimizer steps of B = 100"),
        (
            ["budget.max_optimizer_steps=7"],
            "budget.max_optimizer_steps=7 ends the run after 7 optimizer steps",
        ),
    ],
)
def test_a_budget_that_ends_within_the_warmup_is_warned_of(config, capsys, words, text):
    given = ["--effective-batch-size", 100, "optimizer.name=adam", *words]
    (warning,) = sized(capsys, config, *given)["warnings"]
    assert text in warning
    assert "the warm-up takes 2000" in warning


def test_a_budget_that_ends_before_the_target_is_warned_of(swept, capsys):
    assert not any("budget" in text for text in sized(capsys, swept, *HERE)["warnings"])
    (warning,) = sized(capsys, swept, *HERE, "budget.max_optimizer_steps=50")["warnings"]
    assert "are expected to the target" in warning


def test_a_sweep_of_something_else_is_not_taken_for_this(swept, tmp_path, capsys):
    """By its directory, with a warning; by a config whose own sweep it would be, not at all."""
    changed = "optimizer.momentum=0.5"
    (warning,) = sized(capsys, swept, *HERE, changed)["warnings"]
    assert "a sweep of something else (optimizer.momentum: 0.0 -> 0.5)" in warning
    config = tmp_path / "config.yaml"
    config.write_text((swept / "sweep.yaml").read_text())
    own = f"sweep.directory={swept}"
    assert sized(capsys, config, own, *HERE)["effective_batch_size"] == pytest.approx(CRITICAL, rel=0.1)
    assert main(["size", *map(str, [config, own, *HERE, changed])]) == 2
    assert "no target batch" in capsys.readouterr().err
    said = sized(capsys, config, own, *HERE, changed, "--effective-batch-size", 64)
    assert any("nothing is taken from it" in reason for reason in said["reasons"])


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


BARE = ("learning_rate_scaling.base_learning_rate=null", "learning_rate_scaling.base_batch_size=null")
HERE = ("--micro-batch-size", 8, "--world-size", 1)


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


@pytest.mark.parametrize("override", ["cluster.backend=inline", "strategy=single", "cluster.num_workers=1"])
def test_the_config_it_writes_makes_room_for_the_ranks_and_says_so(config, tmp_path, capsys, override):
    out = tmp_path / "sized.yaml"
    words = ["--effective-batch-size", 64, "--micro-batch-size", 8, "--world-size", 2, "--out", out]
    said = sized(capsys, config, "grid.world_size=[1]", override, *words)
    written = load_sweep_config(out)
    assert any(override.split("=")[0] in reason and str(out) in reason for reason in said["reasons"])
    assert (written.cluster.backend, written.strategy) == ("ray", "ddp")
    assert written.cluster.num_workers in (None, 2)
    plan = plan_sweep(written)
    assert (plan.notes, plan.rejected, len(plan.points)) == ([], [], 1)


def test_a_sized_run_runs_where_its_source_ran_inline(tmp_path, capsys):
    source = tmp_path / "config.yaml"
    source.write_text(CONFIG.replace("[7]", "[1]") + "cluster: {backend: inline}\n")
    out = tmp_path / "sized.yaml"
    words = ["--effective-batch-size", 64, "--micro-batch-size", 8, "--world-size", 1]
    sized(capsys, source, *words, "--out", out)
    assert load_sweep_config(out).cluster.backend == "inline"  # one rank: nothing to change


def test_a_config_that_could_not_run_is_not_written(config, tmp_path, capsys):
    out = tmp_path / "sized.yaml"
    words = f"--effective-batch-size 60 --micro-batch-size 12 --world-size 1 --out {out}"
    assert main(["size", str(config), "determinism=bitwise", *words.split()]) == 2
    assert "micro_batch_size=12 is not a multiple of grain=8" in capsys.readouterr().err
    assert not out.exists()


def test_an_optimizer_that_the_written_config_lacks_is_refused(config, tmp_path, capsys):
    words = f"--effective-batch-size 56 --optimizer adam --out {tmp_path / 'sized.yaml'}"
    assert main(["size", str(config), *words.split()]) == 2
    assert "contradicts the config's optimizer.name=sgd" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "total"),
    [("--noise-scale", 512, 512), ("--critical-batch-size", 100, 100), ("--effective-batch-size", 40, 40)],
)
def test_whichever_flag_gives_b_comes_before_the_sweep(swept, capsys, flag, value, total):
    said = sized(capsys, swept, flag, value, "--micro-batch-size", 8, "--world-size", 1)
    assert said["effective_batch_size"] == total
    assert any(text.endswith("B is what the flags say, not this") for text in said["reasons"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--effective-batch-size 64 --noise-scale 5", "--noise-scale=5 is not used: --effective-batch-size"),
        ("--critical-batch-size 64 --noise-scale 5", "--noise-scale=5 is not used: --critical-batch-size"),
        ("--effective-batch-size 64 --critical-batch-size 9", "--critical-batch-size=9 is not used"),
        (
            "--effective-batch-size 64 --critical-batch-size 9 --optimizer adam "
            "--learning-rate 1 --base-batch-size 8",
            "--critical-batch-size=9 is not used",
        ),
        ("--effective-batch-size 64 --probe-memory", "--probe-memory is not used: --micro-batch-size"),
        ("--effective-batch-size 64 --dataset-examples 1000", "--dataset-examples=1000 is not used"),
        ("--effective-batch-size 64 --dataset-examples 1000 --optimizer adam", "warm-up of adam follows"),
    ],
)
def test_a_flag_given_in_vain_is_named_with_its_reason(capsys, words, text):
    said = sized(capsys, *words.split(), "--micro-batch-size", 8, "--world-size", 1)
    assert any(text in reason for reason in said["reasons"])


def test_b_crit_beside_b_ends_the_linear_scaling_of_the_rate(config, capsys):
    words = "--effective-batch-size 64 --critical-batch-size 32 --micro-batch-size 8 --world-size 1"
    said = sized(capsys, config, *words.split())
    assert said["learning_rate"] == pytest.approx(0.1 * 2 * 2**0.5)
    assert not any("is not used" in reason for reason in said["reasons"])


def test_a_given_b_crit_comes_before_the_configs_knee(config, capsys):
    words = "--effective-batch-size 64 --critical-batch-size 32 --micro-batch-size 8 --world-size 1"
    knee = ["learning_rate_scaling.rule=knee", "learning_rate_scaling.knee_batch_size=16"]
    assert sized(capsys, config, *knee, *words.split())["learning_rate"] == pytest.approx(0.1 * 2 * 2**0.5)


def test_b_moved_to_a_multiple_is_the_same_number_everywhere(capsys):
    words = "--effective-batch-size 1000 --micro-batch-size 48 --world-size 7 --nearest"
    said = sized(capsys, *words.split())
    assert said["effective_batch_size"] == 1008
    assert said["reasons"][0] == "B = 1008 contributions per optimizer step (asked for: 1000)"


def test_a_rate_from_the_edge_of_its_grid_is_warned_of():
    target = {
        "target": "eval_loss <= 0.5",
        "critical_batch_size": {"value": 64.0, "low": 50.0, "high": 80.0, "reason": None},
        "min_steps": {"value": 100.0, "low": 90.0, "high": 110.0, "reason": None},
        "observations": [
            {"effective_batch_size": 8, "learning_rate": 0.1, "num_reached": 3, "flags": []},
            {"effective_batch_size": 64, "learning_rate": 0.4, "num_reached": 3, "flags": ["batch 64: edge"]},
        ],
    }
    answer = answer_from(target, directory=Path("swept"))
    near = answer.baseline(60, warmup_optimizer_steps=0)
    said = size_run(effective_batch_size=60, largest_micro_batch_size=8, world_size=1, baseline=near)
    assert said.warnings == ["the learning rate starts from the sweep's: batch 64: edge"]
    assert answer.baseline(8, warmup_optimizer_steps=0).caution == ()


@pytest.mark.parametrize("words", ["", "--out x.yaml"])
def test_a_grid_of_several_settings_is_not_sized_as_one(config, capsys, words):
    config.write_text(CONFIG.replace("grid: {", "grid: {task.dimension: [16, 512], "))
    size = ["size", str(config), "--effective-batch-size", "64", *words.split()]
    assert main(size) == 2
    assert "grid.task.dimension=[16, 512] is several settings" in capsys.readouterr().err


def test_the_setting_that_was_chosen_is_written(config, tmp_path):
    config.write_text(CONFIG.replace("grid: {", "grid: {task.dimension: [16, 512], "))
    out = tmp_path / "sized.yaml"
    words = ["--effective-batch-size", "56", "--out", str(out), "grid.task.dimension=[512]"]
    assert main(["size", str(config), *words]) == 0
    (point,) = plan_sweep(load_sweep_config(out)).points
    (run,) = plan_sweep(load_sweep_config(out)).runs
    assert (run.axes, run.config.task["dimension"], point.effective_batch_size) == (
        {"task.dimension": 512},
        512,
        56,
    )


def test_the_hardest_target_of_the_setting_speaks():
    def target(value, mode="min", **axes):
        return {"rule": {"metric": "m", "value": value, "mode": mode}, "axes": axes}

    losses = [target(0.2, a=1), target(0.5, a=1), target(0.1, a=2)]
    assert hardest_target(losses, {"a": 1}) is losses[0]
    assert hardest_target(losses, {"a": 3}) is None
    accuracies = [target(0.8, "max"), target(0.9, "max"), target(0.7, "max")]
    assert hardest_target(accuracies, {}) is accuracies[1]


def test_the_probe_measures_what_will_run(config, monkeypatch, capsys):
    asked = {}

    def probe(plan, **options):
        asked.update(options)
        search = SearchResult(largest=16, tried=[(16, True)], reached_limit=False)
        return MemoryProbe(search=search, peak_bytes={}, limit_bytes=2**30)

    monkeypatch.setattr("gasweep.training.memory.probe.probe_largest_micro_batch", probe)
    monkeypatch.setattr("gasweep.training.memory.probe.local_devices", lambda: ("cuda", 4))
    words = ["--effective-batch-size", "64", "--probe-memory", "--world-size"]
    for world_size, tried, said in (
        (2, 2, "on 2 rank(s), two"),
        (8, 4, "on 4 of the 8 ranks, all there are"),
    ):
        assert main(["size", str(config), *words, str(world_size)]) == 0
        assert (asked["world_size"], asked["device"]) == (tried, "cuda")
        assert said in capsys.readouterr().out


def test_a_huge_cluster_is_sized_at_once():
    found = size_run(effective_batch_size=10**9 + 7, largest_micro_batch_size=1, world_size=3 * 10**8)
    assert found.effective_batch_size == 10**9 + 7
