"""Why the layouts of one step differ: each known cause, looked for by itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gasweep.data.index_stream import Indices
from gasweep.tasks.base import Batch
from gasweep.training.coupling import coupling_modules
from gasweep.training.verify.additivity import SIZES, additivity, adds_up
from gasweep.training.verify.subject import Check, Subject

_RANDOM = ("dropout by rank", "random loss", "random data", "hidden state")
_KEYED = (
    "determinism=fast keys by rank and micro-step, so layouts are equal in distribution only "
    "(determinism=bitwise keys by position in the effective batch)"
)


def find_causes(subject: Subject, *, bitwise: bool) -> list[str]:
    """One line per cause found; empty when none of the known ones applies.

    bitwise: the config asks for it; random numbers are then keyed by position, and no cause.
    """
    found: list[str] = []
    for check, ends in _CHECKS:
        if check is _random and bitwise:
            continue
        try:
            with subject.restored():
                found += check(subject)
        except Exception as error:
            name = check.__name__.strip("_").replace("_", " ")
            found.append(f"{name} could not be examined: {type(error).__name__}: {error}")
        if any(cause.startswith(ends) for cause in found):
            break
    return found


def is_random(cause: str) -> bool:
    """Whether a cause says that the same group gives another gradient when it is run again."""
    return cause.startswith(_RANDOM)


def _data(subject: Subject) -> list[str]:
    (indices,) = subject.indices(4)
    whole = subject.data.batch(indices)
    if not _equal(whole, subject.data.batch(indices)):
        return ["random data: data.batch gives other examples when asked again for the same indices"]
    turned = subject.data.batch(indices[::-1].copy())
    rows = [subject.data.batch(indices[i : i + 1]) for i in range(len(indices))]
    last = len(rows) - 1
    if all(_equal(_row(whole, i), row) and _equal(_row(turned, last - i), row) for i, row in enumerate(rows)):
        return []
    return [
        "data order: what data.batch gives for an index depends on the other indices asked for with it, or "
        "on their order (padding to the longest, or state)"
    ]


def _hidden_state(subject: Subject) -> list[str]:
    (indices,) = subject.indices(3)
    answers = []
    for _ in range(3):
        with subject.restored():
            answers.append(subject.ask(indices, seed=0, silent=False))
    if all(torch.equal(answer.gradient, answers[0].gradient) for answer in answers[1:]):
        return []
    return [
        "hidden state: with the same group, parameters and torch seed the gradient is another one each time; "
        "the loss draws from outside torch's global generator (Python's, NumPy's, its own), or keeps state"
    ]


def _batch_statistics(subject: Subject) -> list[str]:
    names = coupling_modules(subject.model)
    if not names or adds_up(subject, *subject.indices(3, 4)):
        return []
    return [
        f"BatchNorm: {', '.join(names)} normalises over the examples of a group, so the gradient depends on "
        f"the micro-batch; use GroupNorm or LayerNorm"
    ]


def _buffers(subject: Subject) -> list[str]:
    coupling = tuple(f"{line.split(' ')[0]}." for line in coupling_modules(subject.model))
    buffers = {name: buffer.clone() for name, buffer in subject.model.named_buffers()}
    parameters = {name: p.detach().clone() for name, p in subject.model.named_parameters()}
    subject.ask(subject.indices(3)[0])
    found = []
    changed = [
        name
        for name, buffer in subject.model.named_buffers()
        if not name.startswith(coupling) and not torch.equal(buffer, buffers.get(name, buffer.new_empty(0)))
    ]
    if changed:
        found.append(
            f"state changed by the forward: buffer {', '.join(changed)}; what a group gives then depends on "
            f"how many groups ran before it"
        )
    moved = [name for name, p in subject.model.named_parameters() if not torch.equal(p, parameters[name])]
    if moved:
        found.append(f"state changed by the forward: it moves the parameter {', '.join(moved)} itself")
    return found


def _random(subject: Subject) -> list[str]:
    (indices,) = subject.indices(3)
    if not _depends_on_seed(subject, indices, silent=False):
        return []
    if _depends_on_seed(subject, indices, silent=True):
        return [f"random loss: it draws random numbers, which {_KEYED}"]
    names = [
        f"{name or 'model'} (p={module.p:g})"
        for name, module in subject.model.named_modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
    ]
    where = ", ".join(names) if names else "called as a function"
    return [f"dropout by rank: {where}; it draws masks, which {_KEYED}"]


def _counts(subject: Subject) -> list[str]:
    per_example = subject.task.items_per_example()
    for indices in subject.indices(*SIZES):
        answer = subject.ask(indices)
        if answer.num_items != answer.counted:
            return [
                f"count mismatch: the loss of {len(indices)} examples counts num_items={answer.num_items}, "
                f"but task.count_items says {answer.counted}"
            ]
        if per_example is not None and per_example * len(indices) != answer.num_items:
            return [
                f"count mismatch: task.items_per_example says {per_example}, but {len(indices)} examples "
                f"count num_items={answer.num_items}"
            ]
    return []


# Each check, and the causes after which the following ones could not be read.
_CHECKS: tuple[tuple[Check, tuple[str, ...]], ...] = (
    (_data, ("random data", "data order")),
    (_hidden_state, ("hidden state",)),
    (_batch_statistics, ()),
    (_buffers, ("state changed",)),
    (_random, ("random loss",)),
    (_counts, ("count mismatch",)),
    (additivity, ()),
)


def _depends_on_seed(subject: Subject, indices: Indices, *, silent: bool) -> bool:
    with subject.restored():
        one = subject.ask(indices, seed=1, silent=silent)
    with subject.restored():
        two = subject.ask(indices, seed=2, silent=silent)
    return not torch.equal(one.gradient, two.gradient) or one.summed != two.summed


def _equal(a: Batch, b: Batch) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))


def _row(batch: Batch, index: int) -> Batch:
    if isinstance(batch, Tensor):
        return batch[index : index + 1]
    if isinstance(batch, dict):
        return {key: _row(value, index) for key, value in batch.items()}
    return type(batch)(_row(value, index) for value in batch)
