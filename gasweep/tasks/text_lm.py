"""Language modelling on bytes: a small GPT on books in the public domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gasweep.errors import TaskError
from gasweep.tasks.arguments import require_number, require_whole
from gasweep.tasks.base import Batch, Data, SummedLoss, Task
from gasweep.tasks.books import Windows, read_windows
from gasweep.tasks.classification import fixed_batches
from gasweep.tasks.counter_noise import uniform

if TYPE_CHECKING:
    from torch import Tensor, nn

VOCABULARY = 256
IGNORED = -100  # the target that torch's cross_entropy leaves out
MASK_SEED = 0


@dataclass(frozen=True, kw_only=True)
class TextWindows(Data):
    """A batch is (tokens, targets), both [n, context] int64; masked targets are -100."""

    windows: Windows
    mask_fraction: float = 0.0

    def __len__(self) -> int:
        return len(self.windows.starts)

    def batch(self, indices: np.ndarray[Any, Any]) -> Batch:
        import torch

        window = self.windows.take(indices)
        tokens, targets = window[:, :-1].copy(), window[:, 1:].copy()
        if self.mask_fraction > 0.0:
            kept = self._num_kept(indices)
            targets[np.arange(self.windows.length) >= kept[:, None]] = IGNORED
        return torch.from_numpy(tokens), torch.from_numpy(targets)

    def _num_kept(self, indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        spread = min(self.mask_fraction, 1.0 - self.mask_fraction)
        share = self.mask_fraction + spread * (2.0 * uniform(indices, seed=MASK_SEED) - 1.0)
        kept: np.ndarray[Any, Any] = np.rint((1.0 - share) * self.windows.length).astype(np.int64)
        return kept


@dataclass(kw_only=True)
class TextLm(Task):
    """Next-byte prediction; an example is one window of `context` bytes, an item of the loss one valid byte.

    depth, width, heads: decoder blocks, features (a multiple of heads), attention heads.
    context: bytes per window. Windows do not overlap and do not cross books.
    dropout: probability, on the embedding and on both residual branches.
    mask_fraction: mean share of a training window's targets that do not count, always at its end, as if the
        text were shorter. Fixed per example, uniform between max(0, 2f - 1) and min(1, 2f), so that windows
        hold unequal numbers of items (none at all is possible). Evaluation is never masked.
    eval_fraction: share of each book, at its end, that is held out.

    Shipped: fifteen books, 7.1 MB. With `data.root`: the .txt and .txt.gz files of that folder.
    """

    depth: int = 2
    width: int = 64
    heads: int = 4
    context: int = 64
    dropout: float = 0.0
    mask_fraction: float = 0.0
    eval_fraction: float = 0.05

    def __post_init__(self) -> None:
        for name in ("depth", "width", "heads", "context"):
            require_whole("TextLm", name, getattr(self, name), at_least=1)
        require_number("TextLm", "dropout", self.dropout, low=0.0, high=0.99)
        require_number("TextLm", "mask_fraction", self.mask_fraction, low=0.0, high=1.0)
        require_number("TextLm", "eval_fraction", self.eval_fraction, low=0.001, high=0.9)
        if self.width % self.heads != 0:
            raise TaskError(
                f"TextLm: width={self.width} is not a multiple of heads={self.heads}; use one that is, "
                f"such as {max(1, self.width // self.heads) * self.heads}"
            )

    def train_data(self, *, root: str | None) -> TextWindows:
        train, _ = read_windows(root, length=self.context, eval_fraction=self.eval_fraction)
        return TextWindows(windows=train, mask_fraction=self.mask_fraction)

    def build_model(self) -> nn.Module:
        from gasweep.tasks.models.gpt import Gpt

        return Gpt(
            vocabulary=VOCABULARY,
            depth=self.depth,
            width=self.width,
            heads=self.heads,
            context=self.context,
            dropout=self.dropout,
        )

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        return SummedLoss(total=self.group_losses(model, batch).sum(), num_items=self.count_items(batch))

    def group_losses(self, model: nn.Module, batch: Batch) -> Tensor:
        import torch
        from torch.nn import functional

        tokens, targets = batch
        logits = model(tokens)
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        losses = functional.cross_entropy(
            logits.reshape(-1, VOCABULARY), targets.reshape(-1), reduction="none", ignore_index=IGNORED
        )
        return losses.view(targets.shape).sum(dim=1)

    def count_items(self, batch: Batch) -> int:
        # Counting on an accelerator waits for it, so count only where something can be masked.
        targets = batch[1]
        return int((targets != IGNORED).sum()) if self.mask_fraction > 0.0 else int(targets.numel())

    def items_per_example(self) -> int | None:
        return self.context if self.mask_fraction == 0.0 else None

    def num_tokens(self, batch: Batch) -> int:
        """Every byte the model reads, masked targets included: what the hardware works on."""
        return int(batch[0].numel())

    def eval_batches(self, *, root: str | None, batch_size: int, max_examples: int | None) -> list[Batch]:
        _, held_out = read_windows(root, length=self.context, eval_fraction=self.eval_fraction)
        if max_examples is not None and max_examples < len(held_out.starts):
            held_out = _spread(held_out, max_examples)
        return fixed_batches(TextWindows(windows=held_out), batch_size=batch_size, max_examples=max_examples)

    def eval_sums(self, model: nn.Module, batch: Batch) -> dict[str, tuple[float, float]]:
        total = float(self.group_losses(model, batch).double().sum())
        return {"eval_loss": (total, float(self.count_items(batch)))}

    def flops_per_example(self, model: nn.Module) -> float:
        """(6·weights that multiply + 12·depth·width·context)·context.

        Source: Chowdhery et al. 2022 (PaLM), appendix B; embeddings are looked up, not multiplied.
        """
        weights = sum(
            parameter.numel()
            for name, parameter in model.named_parameters()
            if parameter.dim() > 1 and not name.endswith(("tokens.weight", "positions.weight"))
        )
        return float((6 * weights + 12 * self.depth * self.width * self.context) * self.context)

    def parallelize(self, model: nn.Module) -> list[nn.Module]:
        return list(model.blocks)  # type: ignore[arg-type]


def _spread(windows: Windows, count: int) -> Windows:
    """`count` windows at equal distances, so that a subset still sees every book."""
    chosen = np.arange(count) * len(windows.starts) // count
    return Windows(text=windows.text, starts=windows.starts[chosen], length=windows.length)
