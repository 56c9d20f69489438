from __future__ import annotations

import pytest
import torch
from torch import nn

from gasweep.training import coupling_modules
from tests.training.toys import toy_spec, train_toy


def test_c58_batch_statistics_see_the_micro_batch() -> None:
    """x = 0, 2, 4, 6: the first normalises to -1.3416 among four and to -1.0 among two."""
    x = torch.tensor([0.0, 2.0, 4.0, 6.0]).reshape(4, 1)
    whole, halves = nn.BatchNorm1d(1, affine=False), nn.BatchNorm1d(1, affine=False)
    assert float(whole(x)[0]) == pytest.approx(-1.3416, abs=1e-4)
    assert float(halves(x[:2])[0]) == pytest.approx(-1.0, abs=1e-4)
    halves(x[2:])
    assert float(whole.running_mean) == pytest.approx(0.30)  # type: ignore[arg-type]
    assert float(halves.running_mean) == pytest.approx(0.59)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        nn.BatchNorm1d(1)(x[:1])


def test_c58_modules_that_couple_examples_are_named() -> None:
    class GhostNorm(nn.Module):
        pass

    model = nn.Sequential(
        nn.Linear(2, 2),
        nn.BatchNorm1d(2),
        nn.Sequential(nn.SyncBatchNorm(2), nn.GroupNorm(1, 2), nn.LayerNorm(2)),
        nn.InstanceNorm1d(2, track_running_stats=True),
        nn.InstanceNorm1d(2),
        nn.LazyBatchNorm1d(),
        GhostNorm(),
    )
    assert coupling_modules(model) == [
        "1 (BatchNorm1d)",
        "2.0 (SyncBatchNorm)",
        "3 (InstanceNorm1d)",
        "5 (LazyBatchNorm1d)",
        "6 (GhostNorm)",
    ]
    assert coupling_modules(model.eval()) == []
    assert coupling_modules(nn.BatchNorm1d(2)) == ["model (BatchNorm1d)"]


def test_c58_a_result_names_them() -> None:
    result = train_toy(spec=toy_spec(arguments={"batch_norm": True}, max_optimizer_steps=1))[0]
    assert result.extra["coupling_modules"] == ["1 (BatchNorm1d)"]
    assert train_toy(spec=toy_spec(max_optimizer_steps=1))[0].extra["coupling_modules"] == []
