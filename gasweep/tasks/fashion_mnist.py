"""Fashion-MNIST: 28x28 grey images of ten kinds of clothes, a small MLP."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gasweep.errors import SourceError
from gasweep.tasks.classification import ImageClassification, LabelledImages
from gasweep.tasks.idx import find_idx, read_idx

if TYPE_CHECKING:
    from torch import nn

SHIPPED = Path(__file__).parent / "shipped" / "fashion_mnist"
NUM_PIXELS = 28 * 28
NUM_CLASSES = 10
# Mean pixel over standard deviation of the 60,000 training images: x / 90 - 0.81 has mean 0, deviation 1.
PIXEL_DEVIATION = 90.0
PIXEL_SHIFT = 0.81


@dataclass(kw_only=True)
class FashionMnist(ImageClassification):
    """Ten classes of 28x28 images. Shipped: the first 10,000 training and the first 2,000 test examples.

    With `data.root`, the IDX files there are used whole (train-images-idx3-ubyte and the other three, plain
    or .gz, in that folder or in torchvision's FashionMNIST/raw below it). Any data set of that form will do,
    MNIST among them.
    Source: Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747.
    """

    def train_data(self, *, root: str | None) -> LabelledImages:
        return read_split("train", root=root)

    def held_out(self, *, root: str | None) -> LabelledImages:
        return read_split("t10k", root=root)

    def build_model(self) -> nn.Module:
        from gasweep.tasks.models.mlp import Mlp

        return Mlp(
            num_features=NUM_PIXELS,
            num_classes=NUM_CLASSES,
            hidden=self.hidden,
            layers=self.layers,
            scale=PIXEL_DEVIATION,
            shift=PIXEL_SHIFT,
        )


def read_split(split: str, *, root: str | None) -> LabelledImages:
    """`split` is "train" or "t10k". Raises SourceError for files that are missing, damaged or disagree."""
    folder = SHIPPED if root is None else Path(root).expanduser()
    folders = [folder, folder / "FashionMNIST" / "raw"]
    images_path = find_idx(folders, f"{split}-images-idx3-ubyte")
    labels_path = find_idx(folders, f"{split}-labels-idx1-ubyte")
    images = read_idx(images_path, shape=(None, 28, 28))
    labels = read_idx(labels_path, shape=(None,))
    if len(images) != len(labels) or len(labels) == 0:
        raise SourceError(
            f"{images_path}: {len(images)} images, but {len(labels)} labels in {labels_path}; "
            "both must come from one split and hold at least one example"
        )
    if int(labels.max()) >= NUM_CLASSES:
        raise SourceError(f"{labels_path}: label {int(labels.max())}, expected 0 to {NUM_CLASSES - 1}")
    return LabelledImages(pixels=images.reshape(len(images), -1), labels=labels.astype(np.int64))
