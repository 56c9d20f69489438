import pytest
from omegaconf import OmegaConf


@pytest.fixture
def base():
    return {
        "name": "small",
        "task": {"_target_": "my_tasks.Mine", "hidden": 64},
        "grid": {
            "micro_batch_size": [8, 32, 128],
            "world_size": [1, 2],
            "accumulation_steps": [1, 4, 16],
            "learning_rate": [0.03, 0.1, 0.3, 1.0],
            "seed": [0, 1, 2],
        },
        "target": {"value": 0.5},
        "budget": {"max_examples": 100000},
    }


@pytest.fixture
def write_config(base, tmp_path):
    def write(**sections):
        path = tmp_path / "config.yaml"
        path.write_text(OmegaConf.to_yaml(OmegaConf.create(base | sections)))
        return path

    return write
