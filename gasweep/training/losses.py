"""A task's loss as the trainer needs it: summed, with a count it can rely on."""

from __future__ import annotations

from torch import Tensor

from gasweep.errors import TaskError
from gasweep.tasks.base import MeanLoss, SummedLoss


def summed_loss(loss: SummedLoss | MeanLoss, *, num_items: int) -> Tensor:
    """Σ loss of a group as a scalar with graph, in fp32 or better.

    num_items: what `task.count_items` said before the forward.
    Raises TaskError when the task returned something else, or another count: the count is agreed between
    ranks before the first backward, so a different one afterwards would make the gradient wrong.
    """
    if isinstance(loss, SummedLoss):
        value = loss.total
    elif isinstance(loss, MeanLoss):
        value = loss.mean
    else:
        raise TaskError(
            f"task.loss returned {type(loss).__name__}; it must return SummedLoss(total=..., num_items=...) "
            "or MeanLoss(mean=..., num_items=...)"
        )
    if not isinstance(value, Tensor) or value.is_complex():
        kind = f"a {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise TaskError(f"task.loss returned {kind}; the loss must be a real tensor, with its graph")
    if loss.num_items != num_items:
        raise TaskError(
            f"task.loss summed num_items={loss.num_items} but task.count_items said {num_items} for the same "
            "batch; override count_items to count what the loss counts"
        )
    if value.numel() != 1:
        raise TaskError(f"task.loss returned a loss of shape {list(value.shape)}; it must be a scalar")
    value = value if value.dim() == 0 else value.reshape(())
    value = value.float() if value.dtype.itemsize < 4 else value
    return value * num_items if isinstance(loss, MeanLoss) else value
