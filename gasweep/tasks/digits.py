"""scikit-learn's digits: 1,797 images of 8x8 pixels, the smallest real task."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gasweep.errors import MissingDependencyError
from gasweep.tasks.arguments import refuse_root, require_number
from gasweep.tasks.classification import ImageClassification, LabelledImages
from gasweep.tasks.counter_noise import random_words

if TYPE_CHECKING:
    from torch import nn

NUM_DIGITS = 1797
SPLIT_SEED = 0


@dataclass(kw_only=True)
class Digits(ImageClassification):
    """Ten classes of 8x8 images with pixels 0 to 16, from scikit-learn (the extra `gasweep[digits]`).

    eval_fraction: share of the 1,797 examples held out for evaluation by a fixed permutation. 0 trains on all
        of them and evaluates on the same examples: eval_loss is then a training loss.
    Source: Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI.
    """

    hidden: int = 32
    eval_fraction: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("Digits", "eval_fraction", self.eval_fraction, low=0.0, high=0.9)

    def train_data(self, *, root: str | None) -> LabelledImages:
        refuse_root("Digits", root, source="comes with scikit-learn")
        return self._take(self._order()[self._num_held_out() :])

    def held_out(self, *, root: str | None) -> LabelledImages:
        refuse_root("Digits", root, source="comes with scikit-learn")
        return self._take(self._order()[: self._num_held_out() or None])

    def build_model(self) -> nn.Module:
        from gasweep.tasks.models.mlp import Mlp

        return Mlp(
            num_features=64, num_classes=10, hidden=self.hidden, layers=self.layers, scale=8.0, shift=1.0
        )

    def _num_held_out(self) -> int:
        return round(NUM_DIGITS * self.eval_fraction)

    def _order(self) -> np.ndarray[Any, Any]:
        words = random_words(np.arange(NUM_DIGITS, dtype=np.uint64), seed=SPLIT_SEED)
        return np.argsort(words)

    def _take(self, indices: np.ndarray[Any, Any]) -> LabelledImages:
        pixels, labels = _load()
        return LabelledImages(pixels=pixels[indices], labels=labels[indices])


@functools.lru_cache(maxsize=1)
def _load() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDependencyError(
            "task gasweep.tasks.Digits needs scikit-learn: pip install 'gasweep[digits]'"
        ) from error
    digits = load_digits()
    return digits.data.astype(np.uint8), digits.target.astype(np.int64)
