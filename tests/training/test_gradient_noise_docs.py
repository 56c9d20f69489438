"""The loop in docs/noise-scale.md runs as printed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from gasweep.analysis.noise_scale import NoiseMeasurement
from gasweep.training.gradient_noise import GradientNoiseScale

DOCS = Path(__file__).parents[2] / "docs" / "noise-scale.md"


def test_the_printed_loop_measures_every_step_it_says(capsys):
    code = DOCS.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    names = {
        "GradientNoiseScale": lambda *args, **kwargs: GradientNoiseScale(*args, every=2, **kwargs),
        "torch": torch,
        "model": model,
        "batch_size": 8,
        "max_steps": 11,
        "gradient_accumulation_steps": 4,
        "get_batch": lambda split: (torch.randn(8, 6), torch.randint(0, 3, (8,))),
        "loss_of": lambda model, x, y: functional.cross_entropy(model(x), y),
        "scaler": torch.amp.GradScaler("cpu"),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }
    exec(compile(code, str(DOCS), "exec"), names)
    steps = names["noise"].steps()
    assert [step.optimizer_step for step in steps] == [0, 2, 4, 6, 8, 10]
    assert all(isinstance(step, NoiseMeasurement) for step in steps)
    assert all(step.num_groups == 4 and step.num_examples == 32 for step in steps)
    assert capsys.readouterr().out.strip()
