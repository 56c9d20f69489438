import dataclasses
import json

import pytest
from omegaconf import OmegaConf

from gasweep.config import config_to_dict, config_to_yaml, load_sweep_config, parse_sweep_config
from gasweep.config.keys import all_keys
from gasweep.config.schema import SweepConfig
from gasweep.config.validate import CHOICES, RANGES, targets
from gasweep.errors import ConfigError


def test_a_file_and_overrides(write_config):
    config = load_sweep_config(
        write_config(), ["grid.learning_rate=[1e-3,3e-3]", "strategy=ddp", "optimizer.momentum=1e-1"]
    )
    assert config.grid["learning_rate"] == [0.001, 0.003]
    assert config.strategy == "ddp"
    assert config.optimizer.momentum == 0.1


def test_c17_scalars_are_typed_by_the_schema(base):
    base["optimizer"] = {"weight_decay": "1e-3"}
    base["schedule"] = {"warmup_optimizer_steps": "4"}
    config = parse_sweep_config(base)
    assert config.optimizer.weight_decay == 0.001
    assert config.schedule.warmup_optimizer_steps == 4


@pytest.mark.parametrize("value", ["2.0", "abc", "'4.0'", "[1]", "true"])
def test_c17_an_int_field_takes_whole_numbers_only(base, value):
    with pytest.raises(ConfigError, match="warmup_optimizer_steps"):
        parse_sweep_config(base, [f"schedule.warmup_optimizer_steps={value}"])


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("gird.micro_batch_size=[16]", "unknown key 'gird'; did you mean 'grid'"),
        ("optimizer.nam=sgd", "unknown key 'optimizer.nam'; did you mean 'optimizer.name'"),
        ("learning_rate=0.1", "did you mean 'grid.learning_rate'"),
        ("momentum=0.1", "did you mean 'optimizer.momentum'"),
        ("tracking.wandb.projct=x", "did you mean 'tracking.wandb.project'"),
        ("strategy=dpd", "strategy='dpd' is not one of single, ddp, fsdp; did you mean 'ddp'"),
        ("optimizer.momentum=1.5", "optimizer.momentum=1.5 must be >= 0 and <= 1"),
        ("noise_scale.overhead_fraction=nan", "noise_scale.overhead_fraction=nan must be > 0 and <= 1"),
        ("noise_scale.every_optimizer_steps=0", "noise_scale.every_optimizer_steps=0 must be >= 1"),
        ("evaluation.batch_size=4294967296", "evaluation.batch_size=4294967296 must be >= 1 and <= "),
        ("ramp=stages.yaml", "ramp='stages.yaml': a run keeps one effective batch size"),
        ("evaluation.spacing_fraction=0", "must be > 0"),
        ("evaluation.spacing_fraction=.inf", "must be > 0"),
        ("budget.max_examples=null", "never end"),
        ("target.value=null", "target.value is missing"),
        ("target.value=nan", "target.value='nan' must be a finite number"),
        ("target.value=.nan", "must be a finite number"),
        ("target.value=[0.5,0.5]", "twice"),
        ("schedule.name=cosine", "needs schedule.horizon_examples"),
        ("learning_rate_scaling.rule=sqrt", "needs base_batch_size"),
        ("optimizer.momentum=${nothing.here}", "optimizer.momentum"),
        ("name=a/b", "folder name"),
        ("optimizer=3", "optimizer=3 must be a mapping"),
        ("task.x", "key=value"),
        ("=3", "key=value"),
        ("optimizer.nesterov=true", "momentum > 0"),
        ("optimizer.betas=[0.9]", "two numbers"),
        ("grid=5", "grid=5 must be a mapping"),
    ],
)
def test_c18_bad_overrides_say_what_is_wrong_in_one_line(base, override, text):
    with pytest.raises(ConfigError, match="(?s)" + text.replace("(", r"\(").replace("[", r"\[")) as caught:
        parse_sweep_config(base, [override])
    assert "\n" not in str(caught.value)


def test_c18_unknown_keys_in_files_too(base):
    base["optimiser"] = {"name": "adam"}
    with pytest.raises(ConfigError, match="did you mean 'optimizer'"):
        parse_sweep_config(base)


def test_c41_arithmetic_in_an_interpolation_is_no_number(base):
    base["grid"]["effective_batch_size"] = ["${grain}*2"]
    del base["grid"]["accumulation_steps"]
    from gasweep.config import plan_sweep

    with pytest.raises(ConfigError, match=r"effective_batch_size='8\*2' must be a whole number"):
        plan_sweep(parse_sweep_config(base))


def test_c43_the_resolved_config_is_plain_json(base):
    config = parse_sweep_config(base, ["grid.task.hidden=[1,2]", "target.value=[0.6,0.5]"])
    text = json.dumps(config_to_dict(config))
    assert parse_sweep_config(json.loads(text)) == config
    assert type(config.grid["seed"]) is list


def test_sweep_yaml_reproduces_the_config(base, tmp_path):
    config = parse_sweep_config(base, ["optimizer.weight_decay=1e-7"])
    path = tmp_path / "sweep.yaml"
    path.write_text(config_to_yaml(config))
    assert load_sweep_config(path) == config


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a: [1", "not valid YAML"),
        ("- 1\n- 2", "mapping"),
        ("name: a\nname: b", "duplicate key"),
        ("target:\n  value: ???", "target.value"),
    ],
)
def test_bad_files(tmp_path, content, text):
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=text.replace("?", r"\?")) as caught:
        load_sweep_config(path)
    assert "\n" not in str(caught.value)


def test_missing_file():
    with pytest.raises(ConfigError, match=r"'nowhere.yaml' does not exist"):
        load_sweep_config("nowhere.yaml")


def test_targets_are_sorted_easiest_first(base):
    assert targets(parse_sweep_config(base, ["target.value=[0.5,0.7]"])) == [0.7, 0.5]
    assert targets(parse_sweep_config(base, ["target.value=[0.9,0.7]", "target.mode=max"])) == [0.7, 0.9]


def test_the_tables_name_real_fields():
    assert {*CHOICES, *RANGES} <= set(all_keys())
    assert dataclasses.is_dataclass(SweepConfig)


def test_omegaconf_reads_1e_3_as_a_number():
    assert OmegaConf.from_dotlist(["a=1e-3"]).a == 0.001


@pytest.mark.parametrize("written", [{"task.hidden": [16, 64]}, {"task": {"hidden": [16, 64]}}])
def test_an_override_replaces_an_extra_axis_however_it_is_written(base, written):
    base["grid"] |= written
    config = parse_sweep_config(base, ["grid.task.hidden=[32]"])
    assert config.grid["task.hidden"] == [32]
    assert "task.hidden" not in parse_sweep_config(base, ["grid.task.hidden=null"]).grid
