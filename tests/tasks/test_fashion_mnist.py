"""Reading Fashion-MNIST: the shipped slice, a user's own files, and files that are wrong."""

import gzip
import os
import struct

import numpy as np
import pytest
import torch

from gasweep.errors import SourceError
from gasweep.tasks import FashionMnist
from gasweep.tasks.fashion_mnist import PIXEL_DEVIATION, PIXEL_SHIFT, SHIPPED


def idx(values):
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.astype(np.uint8).tobytes()


@pytest.fixture
def root(tmp_path):
    """Twelve training and five test images, plain for one split and compressed for the other."""
    generator = np.random.default_rng(0)
    for split, count, pack in (("train", 12, lambda raw: raw), ("t10k", 5, gzip.compress)):
        suffix = "" if split == "train" else ".gz"
        images = generator.integers(0, 256, (count, 28, 28))
        (tmp_path / f"{split}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(images)))
        (tmp_path / f"{split}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(np.arange(count) % 10)))
    return tmp_path


def test_the_shipped_slice():
    task = FashionMnist()
    train, held_out = task.train_data(root=None), task.held_out(root=None)
    assert (len(train), len(held_out)) == (10_000, 2_000)
    assert train.pixels.shape == (10_000, 784)
    assert sorted(np.unique(train.labels)) == list(range(10))
    assert np.bincount(train.labels).min() > 900
    # The first ten labels of the data set, as its authors list them.
    assert train.labels[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert "MIT License" in (SHIPPED / "NOTICE").read_text()


def test_files_of_the_users_own(root):
    task = FashionMnist()
    assert len(task.train_data(root=str(root))) == 12
    batches = task.eval_batches(root=str(root), batch_size=3, max_examples=None)
    assert [len(labels) for _, labels in batches] == [3, 2]
    assert torch.cat([labels for _, labels in batches]).tolist() == [0, 1, 2, 3, 4]


def test_the_layout_of_torchvision(root, tmp_path_factory):
    base = tmp_path_factory.mktemp("torchvision")
    (base / "FashionMNIST").mkdir()
    (base / "FashionMNIST" / "raw").symlink_to(root)
    assert len(FashionMnist().train_data(root=str(base))) == 12


def test_changed_files_are_read_again(root):
    task = FashionMnist()
    before = task.train_data(root=str(root)).labels.copy()
    path = root / "train-labels-idx1-ubyte"
    path.write_bytes(idx((np.arange(12) + 1) % 10))
    later = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(later, later))
    assert task.train_data(root=str(root)).labels.tolist() == ((before + 1) % 10).tolist()


def images_of(root):
    return root / "train-images-idx3-ubyte"


def test_missing_folder(tmp_path):
    with pytest.raises(SourceError, match=r"nowhere' is no folder; it should hold train-images-idx3-ubyte"):
        FashionMnist().train_data(root=str(tmp_path / "nowhere"))


def test_missing_file(root):
    (root / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(SourceError, match=r"no train-labels-idx1-ubyte or train-labels-idx1-ubyte.gz in"):
        FashionMnist().train_data(root=str(root))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "starts with , no IDX header"),
        (b"<html>404</html>", "starts with 3c 68 74 6d, no IDX header"),
        (idx(np.zeros((12, 28, 28)))[:-5], "promises 9408 values, the file holds 9403; it is truncated"),
        (idx(np.zeros((12, 28, 28))) + b"x", "promises 9408 values, the file holds 9409"),
        (idx(np.zeros((12, 32, 32))), "shape 12x32x32, expected nx28x28"),
        (idx(np.zeros(12)), "an IDX file of 1 dimensions, expected 3"),
        (idx(np.zeros((12, 28, 28)))[:9], "an IDX file of 3 dimensions"),
        (gzip.compress(idx(np.zeros((12, 28, 28))), mtime=0)[:-9], "cannot be read"),
        (gzip.compress(b"", mtime=0)[:5] + b"\0" * 40, "cannot be read"),
        (idx(np.zeros((11, 28, 28))), "11 images, but 12 labels"),
    ],
)
def test_damaged_images(root, content, expected):
    images_of(root).write_bytes(content)
    with pytest.raises(SourceError, match=expected) as raised:
        FashionMnist().train_data(root=str(root))
    assert str(images_of(root)) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_label_out_of_range(root):
    (root / "train-labels-idx1-ubyte").write_bytes(idx(np.full(12, 10)))
    with pytest.raises(SourceError, match="label 10, expected 0 to 9"):
        FashionMnist().train_data(root=str(root))


def test_the_model_sees_standardised_pixels():
    pixels = FashionMnist().train_data(root=None).pixels[:4000].astype(np.float64)
    standardised = pixels / PIXEL_DEVIATION - PIXEL_SHIFT
    assert abs(standardised.mean()) < 0.02
    assert abs(standardised.std() - 1.0) < 0.02


def test_layers_and_hidden_shape_the_model():
    shapes = [tuple(p.shape) for p in FashionMnist(hidden=5, layers=2).build_model().parameters()]
    assert shapes == [(5, 784), (5,), (5, 5), (5,), (10, 5), (10,)]
    assert [tuple(p.shape) for p in FashionMnist(layers=0).build_model().parameters()] == [(10, 784), (10,)]
