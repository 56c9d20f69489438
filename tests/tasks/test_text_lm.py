"""The byte-level language model: windows, masking, the held-out split and the network."""

import gzip
import math

import numpy as np
import pytest
import torch

from gasweep.errors import SourceError, TaskError
from gasweep.tasks import TextLm
from gasweep.tasks.books import SHIPPED, read_windows

SMALL = {"depth": 1, "width": 16, "heads": 2, "context": 8}


@pytest.fixture
def root(tmp_path):
    """Two books of 100 and 200 distinct-looking bytes, and a file that is no text."""
    (tmp_path / "a.txt").write_bytes(bytes(range(100)))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(bytes(range(200))))
    (tmp_path / "notes.md").write_text("not a book")
    return str(tmp_path)


def test_shipped_books():
    task = TextLm(context=64)
    data = task.train_data(root=None)
    assert len(data) > 100_000
    tokens, targets = data.batch(np.array([0]))
    assert bytes(tokens[0].tolist()).startswith(b"[Emma by Jane Austen 1816]")
    assert torch.equal(tokens[0, 1:], targets[0, :-1])
    notice = (SHIPPED / "NOTICE").read_text()
    for path in SHIPPED.glob("*.txt.gz"):
        assert path.name.removesuffix(".txt.gz").split("-")[0] in notice


def test_windows_cover_each_book_without_overlap_or_crossing(root):
    train, held_out = read_windows(root, length=8, eval_fraction=0.25)
    # 75 of 100 and 150 of 200 bytes train: windows of 8 inputs and one more target byte.
    assert len(train.starts) == (75 - 1) // 8 + (150 - 1) // 8
    assert len(held_out.starts) == (25 - 1) // 8 + (50 - 1) // 8
    rows = train.take(np.arange(len(train.starts)))
    assert np.all(np.diff(rows, axis=1) == 1)
    assert rows[0].tolist() == list(range(9))
    assert rows[1].tolist() == list(range(8, 17))
    assert rows[9].tolist() == list(range(9))


def test_held_out_text_is_never_trained_on(root):
    train, held_out = read_windows(root, length=8, eval_fraction=0.25)
    trained = (train.starts[:, None] + np.arange(9)).ravel()
    evaluated = (held_out.starts[:, None] + np.arange(9)).ravel()
    assert not set(trained) & set(evaluated)


def test_evaluation_of_few_windows_sees_every_book(root):
    task = TextLm(**SMALL, eval_fraction=0.25)
    ((tokens, _),) = task.eval_batches(root=root, batch_size=10, max_examples=3)
    assert tokens.shape == (3, 8)
    assert tokens[0, 0] == 75
    assert tokens[-1, 0] >= 150


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_mask_fraction_is_the_mean_share_of_masked_targets(fraction):
    task = TextLm(**{**SMALL, "context": 64}, mask_fraction=fraction)
    data = task.train_data(root=None)
    indices = np.arange(4000)
    _, targets = data.batch(indices)
    masked = (targets == -100).double().mean(dim=1).numpy()
    assert masked.mean() == pytest.approx(fraction, abs=4.5 * float(masked.std()) / math.sqrt(4000) + 1e-6)
    assert np.ptp(masked) == pytest.approx(2 * min(fraction, 1 - fraction), abs=0.02)
    kept_then_masked = torch.diff((targets == -100).int(), dim=1)
    assert bool((kept_then_masked >= 0).all())


def test_masking_is_fixed_per_example_and_absent_from_evaluation():
    task = TextLm(**SMALL, mask_fraction=0.5)
    data = task.train_data(root=None)
    _, targets = data.batch(np.arange(50))
    _, again = data.batch(np.arange(50)[::-1].copy())
    assert torch.equal(targets, again.flip(0))
    counts = (targets != -100).sum(dim=1)
    assert counts.min() == 0
    assert counts.max() == 8
    for _, held_out in task.eval_batches(root=None, batch_size=10, max_examples=20):
        assert not bool((held_out == -100).any())


def test_c56_a_group_without_a_valid_token_contributes_nothing():
    task = TextLm(**SMALL, mask_fraction=1.0)
    model = task.build_model()
    batch = task.train_data(root=None).batch(np.arange(3))
    result = task.loss(model, batch)
    result.total.backward()
    assert (result.total.item(), result.num_items) == (0.0, 0)
    assert all(bool((p.grad == 0).all()) for p in model.parameters() if p.grad is not None)
    assert task.num_tokens(batch) == 24


def test_the_model_is_causal():
    task = TextLm(**SMALL)
    torch.manual_seed(0)
    model = task.build_model().eval()
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5:] = 200
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[0, :5], after[0, :5])
    assert not torch.equal(before[0, 5:], after[0, 5:])


def test_a_fresh_model_predicts_bytes_evenly():
    task = TextLm()
    torch.manual_seed(0)
    model = task.build_model().eval()
    with torch.no_grad():
        sums = [
            task.eval_sums(model, batch)["eval_loss"]
            for batch in task.eval_batches(root=None, batch_size=16, max_examples=32)
        ]
    mean = sum(total for total, _ in sums) / sum(count for _, count in sums)
    assert mean == pytest.approx(math.log(256), abs=0.05)


def test_dropout_draws_from_torchs_generator_in_training_only():
    task = TextLm(**SMALL, dropout=0.5)
    torch.manual_seed(0)
    model = task.build_model()
    batch = task.train_data(root=None).batch(np.arange(4))
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(task.loss(model, batch).total.item())
    assert losses[0] == losses[1] != losses[2]
    model.eval()
    assert task.loss(model, batch).total.item() == task.loss(model, batch).total.item()


def test_flops_per_example():
    """One block of width 16: 12·16² weights and the head's 256·16, 8 positions; 12·depth·width·context."""
    task = TextLm(**SMALL)
    expected = (6 * (12 * 16 * 16 + 256 * 16) + 12 * 1 * 16 * 8) * 8
    assert task.flops_per_example(task.build_model()) == expected


def test_blocks_are_sharding_units():
    task = TextLm(**{**SMALL, "depth": 3})
    model = task.build_model()
    assert task.parallelize(model) == list(model.blocks)
    assert len(model.blocks) == 3


def test_missing_text(tmp_path):
    with pytest.raises(SourceError, match=r"gone' is no folder; it should hold .txt or .txt.gz files"):
        TextLm().train_data(root=str(tmp_path / "gone"))
    with pytest.raises(SourceError, match=r"holds no .txt or .txt.gz file"):
        TextLm().train_data(root=str(tmp_path))


def test_damaged_text(tmp_path):
    path = tmp_path / "book.txt.gz"
    path.write_bytes(gzip.compress(bytes(range(200)) * 9)[:-10])
    with pytest.raises(SourceError, match=r"book\.txt\.gz: cannot be read"):
        TextLm().train_data(root=str(tmp_path))


def test_too_little_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 70)
    with pytest.raises(SourceError, match=r"70 bytes of text are too few .* smaller task.context"):
        TextLm(context=64).train_data(root=str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 10, "heads": 4}, "width=10 is not a multiple of heads=4; use one that is, such as 8"),
        ({"depth": 0}, "depth=0 must be a whole number >= 1"),
        ({"dropout": 1.5}, "dropout=1.5 must be a finite number >= 0 and <= 0.99"),
        ({"mask_fraction": -0.1}, "mask_fraction=-0.1 must be"),
        ({"eval_fraction": 0.0}, "eval_fraction=0.0 must be"),
    ],
)
def test_impossible_arguments(arguments, message):
    with pytest.raises(TaskError, match=f"TextLm: {message}"):
        TextLm(**arguments)
