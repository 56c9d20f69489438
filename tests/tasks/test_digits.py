"""scikit-learn's digits: the split, and what happens without scikit-learn."""

import builtins

import numpy as np
import pytest

from gasweep.errors import MissingDependencyError, TaskError
from gasweep.tasks import Digits
from gasweep.tasks import digits as digits_module


def rows(data):
    return {tuple(row) for row in data.pixels.tolist()}


def test_the_split_is_a_partition():
    task = Digits()
    train, held_out = task.train_data(root=None), task.held_out(root=None)
    assert (len(train), len(held_out)) == (1438, 359)
    assert len(rows(train) | rows(held_out)) == 1797
    assert train.pixels.max() == 16
    assert sorted(np.unique(held_out.labels)) == list(range(10))
    assert np.bincount(train.labels).min() > 120


def test_the_split_does_not_change_between_releases():
    """A run's identity says nothing about the split, so it must stay what it is."""
    assert Digits().train_data(root=None).labels[:12].tolist() == [3, 8, 8, 3, 6, 6, 2, 1, 8, 1, 1, 2]


def test_no_evaluation_split_trains_on_all():
    task = Digits(eval_fraction=0.0)
    train, held_out = task.train_data(root=None), task.held_out(root=None)
    assert len(train) == len(held_out) == 1797
    assert np.array_equal(train.pixels, held_out.pixels)


def test_without_scikit_learn(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    digits_module._load.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"needs scikit-learn: pip install 'gasweep\[digits\]'"):
        Digits().train_data(root=None)


def test_a_data_root_is_refused():
    with pytest.raises(TaskError, match=r"data\.root='/data' has no use here, .* with scikit-learn"):
        Digits().train_data(root="/data")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eval_fraction": 0.95}, "eval_fraction=0.95 must be a finite number >= 0 and <= 0.9"),
        ({"hidden": 0}, "hidden=0 must be a whole number >= 1"),
        ({"layers": -1}, "layers=-1 must be a whole number >= 0"),
    ],
)
def test_impossible_arguments(arguments, message):
    with pytest.raises(TaskError, match=f"Digits: {message}"):
        Digits(**arguments)
