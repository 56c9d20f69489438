"""Does a task keep its contract? Run it on your own task before a sweep relies on it.

>>> from gasweep.tasks import Digits, check_task
>>> check_task(Digits())
[]
"""

from __future__ import annotations

import dataclasses
import pickle
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gasweep.tasks.base import Batch, Data, SummedLoss, Task, num_examples

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

NUM_EXAMPLES = 6
RELATIVE_TOLERANCE = 1e-12


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Subject:
    """A task with what the checks need of it. model: double precision, dropout off, training mode."""

    task: Task
    root: str | None
    data: Data
    model: nn.Module

    def batch(self, start: int, end: int) -> Batch:
        """Examples start..end-1 of a fixed selection, in double precision."""
        chosen = np.arange(NUM_EXAMPLES, dtype=np.int64) * 7 % len(self.data)
        return _double(self.data.batch(chosen[start:end]))

    def gradients(self, start: int, end: int) -> tuple[float, int, list[Tensor]]:
        """(summed loss, items, gradient of the summed loss per parameter) of that group."""
        import torch

        self.model.zero_grad(set_to_none=True)
        torch.manual_seed(0)
        result = self.task.loss(self.model, self.batch(start, end))
        total = result.total if isinstance(result, SummedLoss) else result.mean * result.num_items
        total.backward()  # type: ignore[no-untyped-call]
        zeros = [torch.zeros_like(parameter) for parameter in self.model.parameters()]
        pairs = zip(self.model.parameters(), zeros, strict=True)
        gradients = [zero if p.grad is None else p.grad.clone() for p, zero in pairs]
        return float(total.detach()), result.num_items, gradients


def check_task(task: Task, *, root: str | None = None) -> list[str]:
    """One line per breach of the contract in `gasweep.tasks.base`; empty when it is kept.

    root: `data.root`. Dropout is switched off in the model it checks. Loads torch; trains nothing.
    """
    problems = list(_check_pickle(task))
    try:
        subject = _Subject(task=task, root=root, data=task.train_data(root=root), model=_model(task))
    except Exception as error:
        return [*problems, f"train_data or build_model raised {type(error).__name__}: {error}"]
    for check in CHECKS:
        try:
            problems += check(subject)
        except Exception as error:
            problems.append(f"{check.__name__.strip('_')} raised {type(error).__name__}: {error}")
    return problems


def _model(task: Task) -> nn.Module:
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = task.build_model().double().train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model


def _check_pickle(task: Task) -> Iterator[str]:
    try:
        copy = pickle.loads(pickle.dumps(task))
    except Exception as error:
        yield f"the task cannot be pickled, so no worker can have it: {error}"
        return
    same = copy == task if dataclasses.is_dataclass(task) else type(copy) is type(task)
    if not same:
        yield "a pickled copy of the task differs from it"


def _check_batches(subject: _Subject) -> Iterator[str]:
    """Every batch is a function of its indices alone, row by row."""
    data = subject.data
    if len(data) < 1:
        yield f"train_data holds {len(data)} examples; at least 1 is needed"
        return
    last = len(data) - 1
    indices = np.array([0, last, last // 2, 0], dtype=np.int64)
    whole = data.batch(indices)
    if num_examples(whole) != len(indices):
        yield f"batch of {len(indices)} indices has {num_examples(whole)} examples along dimension 0"
    if not _equal(whole, data.batch(indices)):
        yield "batch(indices) gives other examples when called twice: it must depend on the indices alone"
    rows = [data.batch(indices[i : i + 1]) for i in range(len(indices))]
    if not all(_equal(_rows(whole, i), row) for i, row in enumerate(rows)):
        yield "batch([i, j, ...]) is not batch([i]), batch([j]), ... row by row (order, repeats or shapes)"
    empty = data.batch(indices[:0])
    if num_examples(empty) != 0:
        yield f"batch of no indices has {num_examples(empty)} examples"


def _check_model(subject: _Subject) -> Iterator[str]:
    """The initial parameters depend on torch's global RNG alone."""
    import torch

    states = []
    for seed in (1, 2):
        np.random.seed(seed)
        random.seed(seed)
        torch.manual_seed(0)
        states.append(subject.task.build_model().state_dict())
    if not all(torch.equal(states[0][name], states[1][name]) for name in states[0]):
        yield "build_model gives other parameters under one torch seed: draw from torch's global RNG alone"
    units = subject.task.parallelize(subject.model)
    inside = {id(module) for module in subject.model.modules()}
    if units is not None and not all(id(unit) in inside for unit in units):
        yield "parallelize returns modules that are no part of the model"


def _check_loss(subject: _Subject) -> Iterator[str]:
    """One forward per loss, a scalar with graph, and the count that was announced."""
    calls: list[None] = []
    handle = subject.model.register_forward_hook(lambda *_: calls.append(None))
    batch = subject.batch(0, NUM_EXAMPLES)
    result = subject.task.loss(subject.model, batch)
    handle.remove()
    value = result.total if isinstance(result, SummedLoss) else result.mean
    if len(calls) != 1:
        yield f"loss calls the model {len(calls)} times; it must be once, for wrappers hook the forward"
    if value.numel() != 1:
        yield f"loss has shape {list(value.shape)}; it must be a scalar"
    if value.dtype != next(subject.model.parameters()).dtype:
        yield f"loss of a float64 model is {value.dtype}; do not lower the precision inside"
    announced = subject.task.count_items(batch)
    if announced != result.num_items:
        yield f"count_items says {announced}, loss summed num_items={result.num_items}; override count_items"
    tokens = subject.task.num_tokens(batch)
    if tokens is not None and tokens < 0:
        yield f"num_tokens is {tokens}"


def _check_parts(subject: _Subject) -> Iterator[str]:
    """The loss of a group is the sum over its examples: the equality that accumulation rests on."""
    whole_loss, whole_items, whole = subject.gradients(0, NUM_EXAMPLES)
    parts = [subject.gradients(*bounds) for bounds in ((0, 2), (2, NUM_EXAMPLES))]
    if sum(items for _, items, _ in parts) != whole_items:
        yield "the items of the parts of a group do not add up to those of the whole"
    scale = sum(abs(loss) for loss, _, _ in parts) + 1e-300
    gap = abs(sum(loss for loss, _, _ in parts) - whole_loss) / scale
    if not gap <= RELATIVE_TOLERANCE:
        yield f"summed loss of a group differs from the sum over its parts by a relative {gap:.1e}{_CAUSES}"
    summed = [sum(part) for part in zip(*(gradients for _, _, gradients in parts), strict=True)]
    size = max(float(gradient.abs().max()) for part in parts for gradient in part[2]) + 1e-300
    gap = max(float((a - b).abs().max()) for a, b in zip(summed, whole, strict=True)) / size
    if not gap <= RELATIVE_TOLERANCE:
        yield f"gradient of a group differs from the sum over its parts by a relative {gap:.1e}{_CAUSES}"


_CAUSES = ": a mean loss, batch normalisation, or randomness outside torch's dropout modules?"


def _check_empty_group(subject: _Subject) -> Iterator[str]:
    """An empty group has loss 0, no items, and a graph whose gradient is 0."""
    loss, items, gradients = subject.gradients(0, 0)
    if loss != 0.0 or items != 0:
        yield f"an empty group has loss {loss} over {items} items; it must be 0 over 0 (sum, do not average)"
    if not all(bool((gradient == 0).all()) for gradient in gradients):
        yield "an empty group has a gradient that is not 0"


def _check_group_losses(subject: _Subject) -> Iterator[str]:
    """Per-example losses, where the task has them, add up to the loss."""
    batch = subject.batch(0, NUM_EXAMPLES)
    found = subject.task.group_losses(subject.model, batch)
    if found is None:
        return
    losses = found.detach()
    if list(losses.shape) != [num_examples(batch)]:
        yield f"group_losses has shape {list(losses.shape)}, expected [{num_examples(batch)}]"
    total, _, _ = subject.gradients(0, NUM_EXAMPLES)
    gap = abs(float(losses.sum()) - total)
    if not gap <= RELATIVE_TOLERANCE * float(losses.abs().sum()) + 1e-300:
        yield f"group_losses add up to {float(losses.sum())!r}, loss to {total!r}"


def _check_evaluation(subject: _Subject) -> Iterator[str]:
    """Evaluation is fixed: the same batches and sums whatever the random state."""
    import torch

    runs = []
    model = subject.model.eval()
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        batches = subject.task.eval_batches(root=subject.root, batch_size=4, max_examples=10)
        with torch.no_grad():
            runs.append((batches, [subject.task.eval_sums(model, _double(batch)) for batch in batches]))
    model.train()
    (batches, sums), (again, sums_again) = runs
    if not batches:
        yield "eval_batches returns no batch"
    if len(batches) != len(again) or not all(map(_equal, batches, again)) or sums != sums_again:
        yield "evaluation differs between two calls: it must be the same examples and the same sums"
    if sum(map(num_examples, batches)) > 10 or any(num_examples(batch) > 4 for batch in batches):
        yield "eval_batches ignores max_examples or batch_size"
    yield from _check_sums(subject.task.metrics(), sums)


def _check_sums(metrics: tuple[str, ...], sums: list[dict[str, tuple[float, float]]]) -> Iterator[str]:
    if "eval_loss" not in metrics:
        yield f"metrics() names {', '.join(metrics)}; it must hold 'eval_loss'"
    for found in sums:
        if sorted(found) != sorted(metrics):
            yield f"eval_sums returns {sorted(found)}, metrics() names {sorted(metrics)}"
            return
    for metric in metrics:
        if not sum(found[metric][1] for found in sums) > 0:
            yield f"eval_sums counts no item for {metric!r}"
        if not all(np.isfinite(found[metric]).all() for found in sums):
            yield f"eval_sums of {metric!r} is not finite for a fresh model"


CHECKS: tuple[Callable[[_Subject], Iterator[str]], ...] = (
    _check_batches,
    _check_model,
    _check_loss,
    _check_parts,
    _check_empty_group,
    _check_group_losses,
    _check_evaluation,
)


def _map(batch: Batch, function: Callable[[torch.Tensor], Any]) -> Batch:
    if isinstance(batch, dict):
        return {key: _map(value, function) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(_map(value, function) for value in batch)
    return function(batch)


def _double(batch: Batch) -> Batch:
    return _map(batch, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def _rows(batch: Batch, index: int) -> Batch:
    return _map(batch, lambda tensor: tensor[index : index + 1])


def _equal(left: Batch, right: Batch) -> bool:
    """Equal in structure, shape, dtype and value."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(_equal, left, right))
    return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())
