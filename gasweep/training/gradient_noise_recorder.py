"""What one rank sees of the gradients of its groups in one optimizer step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gasweep.training.gradient_noise_norms import dot, norm, norms, weighted_square
from gasweep.training.gradient_noise_recorded import Array, Group, Recorded, Sample
from gasweep.training.gradient_noise_sample import HeadSample

_SMALL = 65536  # elements; a GPU norms gradients up to this many in one launch for all

OwnPart = Callable[[int, Tensor], Tensor | None]
Preconditioner = Callable[[int], Tensor]


class _OpenGroup:
    """One group's norms by parameter; a GPU's small gradients are held until it ends and normed in one call.

    On a CPU each is normed as it comes, still in the cache: one call for all saved less there than the copy
    costs that autograd makes of a gradient somebody else holds.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.is_silent = group.num_examples == 0 or group.num_items == 0
        self.seen: set[int] = set()
        self.norms: dict[int, Tensor] = {}
        self.held: dict[int, Tensor] = {}
        self.own: dict[int, Tensor] = {}
        self.adam: dict[int, Tensor] = {}
        self.pieces: dict[int, Tensor] = {}


class NormRecorder:
    """Takes squared norms during the backward, one parameter at a time, and keeps no gradient.

    A tensor hook on the parameter runs before the gradient is added to `.grad`, so accumulation, sync,
    unscale and clipping have not happened, whatever the strategy; autograd has already added up the uses of a
    shared parameter. Taking differences of the accumulated buffer, or accumulating into a second one, would
    need memory and further passes over the gradients; this is the norm's own pass and nothing else.

    A parameter whose gradient comes in pieces (several backwards per group, reentrant checkpointing) costs
    the step it is first seen in; from then on its pieces are kept until the group ends.

    own_part: the coordinates of a whole gradient that this rank holds the final gradient of, None for none;
        None: all.
    head_sizes: how many of each parameter's first elements rank 0 owns; None: all.
    """

    def __init__(
        self,
        parameters: list[Tensor],
        *,
        own_part: OwnPart | None = None,
        head_sizes: list[int] | None = None,
    ) -> None:
        self._count = len(parameters)
        self._own_part = own_part
        sizes = [parameter.numel() for parameter in parameters] if head_sizes is None else head_sizes
        self._sample = HeadSample(parameters, head_sizes=sizes)
        self._in_pieces: set[int] = set()
        self.begin_step()

    def begin_step(self, *, preconditioner: Preconditioner | None = None, keeps_sum: bool = False) -> None:
        """Forget what was recorded.

        preconditioner: P of a parameter on the owned coordinates; None: no Adam metric this step.
        keeps_sum: keep Σ cross_weight · h there (one gradient's memory while the step is measured).
        """
        self._preconditioner = preconditioner
        self._keeps_sum = keeps_sum
        self._open: _OpenGroup | None = None
        self._groups: list[Group] = []
        self._rows: list[tuple[list[int], Tensor]] = []
        self._own_rows: list[tuple[list[int], Tensor]] = []
        self._adam_rows: list[tuple[list[int], Tensor]] = []
        self._sum: dict[int, Tensor] = {}
        self._sample.begin_step()
        self._low_precision = False
        self._surprised = False

    @property
    def num_groups(self) -> int:
        return len(self._groups)

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def begin_group(self, group: Group) -> None:
        self._open = _OpenGroup(group)

    def hook(self, index: int, gradient: Tensor) -> None:
        """One parameter's gradient of the open group; ignored outside any."""
        opened = self._open
        if opened is None or opened.is_silent:
            return
        if gradient.requires_grad:
            gradient = gradient.detach()
        if index in self._in_pieces:
            kept = opened.pieces.get(index)
            opened.pieces[index] = gradient.clone() if kept is None else kept + gradient
        elif index in opened.seen:
            self._surprised = True
            self._in_pieces.add(index)
        else:
            self._see(opened, index, gradient)

    @torch.no_grad()
    def end_group(self) -> None:
        opened = self._open
        assert opened is not None, "no group is open"
        self._open = None
        if opened.group.num_examples == 0:
            return
        for index, gradient in opened.pieces.items():
            self._see(opened, index, gradient)
        indices = [*opened.norms, *opened.held]
        self._groups.append(opened.group)
        self._rows.append((indices, _join(list(opened.norms.values()), norms(list(opened.held.values())))))
        if self._preconditioner is not None:
            self._adam_rows.append((list(opened.adam), _stack(list(opened.adam.values()))))
        if self._sees_own_norms:
            self._own_rows.append((list(opened.own), _stack(list(opened.own.values()))))

    @property
    def _sees_own_norms(self) -> bool:
        return self._own_part is not None and self._keeps_sum

    @torch.no_grad()
    def finish(self, finals: list[Tensor | None], *, owns_heads: bool = True) -> Recorded:
        """Add the step's final gradient and read everything from the device, once.

        finals: the synced, unscaled, unclipped gradient on the coordinates this rank owns; None is 0.
        owns_heads: whether those coordinates hold each parameter's first elements.
        """
        grads = {index: final.detach() for index, final in enumerate(finals) if final is not None}
        columns = [(list(grads), norms(list(grads.values())))]
        columns += [self._crosses(grads, adam=False)] if self._keeps_sum else []
        if self._preconditioner is not None:
            columns.append(self._adam_finals(grads))
            columns += [self._crosses(grads, adam=True)] if self._keeps_sum else []
        heads = grads if owns_heads else {}
        rows = [*self._rows, *self._own_rows, *self._adam_rows, *columns]
        parts = [*self._sample.tensors(heads), *(values for _, values in rows)]
        device = next((values.device for _, values in rows if len(values)), None)
        flat = torch.cat([part.to(device) for part in parts]).double().cpu().numpy()
        sampled, flat = np.split(flat, [self._sample.num_read(heads)])
        pieces = np.split(flat, np.cumsum([len(values) for _, values in rows])[:-1])
        dense = [self._dense(indices, piece) for (indices, _), piece in zip(rows, pieces, strict=True)]
        low = self._low_precision or any(gradient.dtype.itemsize < 4 for gradient in grads.values())
        with np.errstate(over="ignore"):
            sample = self._sample.read(sampled, heads)
            self._sample.next_parameters()
            return self._recorded(dense, sample, low_precision=low)

    def _see(self, opened: _OpenGroup, index: int, gradient: Tensor) -> None:
        opened.seen.add(index)
        if self._preconditioner is not None or self._keeps_sum:
            self._see_own(opened, index, gradient)
        self._sample.add(index, gradient)
        self._low_precision |= gradient.dtype.itemsize < 4
        if gradient.is_cuda and gradient.numel() <= _SMALL and not gradient.is_sparse:
            opened.held[index] = gradient
        else:
            opened.norms[index] = norm(gradient)

    def _see_own(self, opened: _OpenGroup, index: int, gradient: Tensor) -> None:
        own = gradient if self._own_part is None else self._own_part(index, gradient)
        if own is None:
            return
        if self._sees_own_norms:
            opened.own[index] = norm(own)
        if self._preconditioner is not None:
            opened.adam[index] = weighted_square(own, self._preconditioner(index))
        if self._keeps_sum:
            self._add(index, own, opened.group.cross_weight)

    def _add(self, index: int, gradient: Tensor, weight: float) -> None:
        kept = self._sum.get(index)
        if kept is None:
            dtype = torch.promote_types(torch.float32, gradient.dtype)
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            self._sum[index] = dense.to(dtype, copy=True).mul_(weight)
        else:
            kept.add_(gradient, alpha=weight)

    def _crosses(self, grads: dict[int, Tensor], *, adam: bool) -> tuple[list[int], Tensor]:
        indices = [index for index in self._sum if index in grads]
        values = []
        for index in indices:
            kept = self._sum[index]
            if adam and self._preconditioner is not None:
                kept = kept * self._preconditioner(index)
            values.append(dot(kept, grads[index]))
        return indices, _stack(values)

    def _adam_finals(self, grads: dict[int, Tensor]) -> tuple[list[int], Tensor]:
        assert self._preconditioner is not None
        values = [weighted_square(gradient, self._preconditioner(i)) for i, gradient in grads.items()]
        return list(grads), _stack(values)

    def _dense(self, indices: list[int], values: Array) -> Array:
        row = np.zeros(self._count)
        row[indices] = values
        return row

    def _recorded(self, dense: list[Array], sample: Sample, *, low_precision: bool) -> Recorded:
        count, owned = len(self._rows), len(self._own_rows)
        groups, own_groups, rest = dense[:count], dense[count : count + owned], dense[count + owned :]
        adam_groups, rest = rest[: len(self._adam_rows)], rest[len(self._adam_rows) :]
        final_norms, *rest = rest
        cross = rest.pop(0) if self._keeps_sum else None
        has_adam = self._preconditioner is not None
        sq_norms = self._rows_of(groups) ** 2
        return Recorded(
            groups=list(self._groups),
            sq_norms=sq_norms,
            own_sq_norms=self._rows_of(own_groups) ** 2 if own_groups else sq_norms,
            final_sq_norms=final_norms**2,
            adam_sq_norms=self._rows_of(adam_groups) if has_adam else None,
            adam_final_sq_norms=rest.pop(0) if has_adam else None,
            cross=cross,
            adam_cross=rest.pop(0) if has_adam and self._keeps_sum else None,
            sample=sample,
            low_precision=low_precision,
            in_pieces=self._surprised,
        )

    def _rows_of(self, groups: list[Array]) -> Array:
        return np.stack(groups) if groups else np.zeros((0, self._count))


def _join(values: list[Tensor], row: Tensor) -> Tensor:
    if not values:
        return row
    stacked = torch.stack(values)
    return torch.cat([stacked, row.to(stacked.device)]) if len(row) else stacked


def _stack(values: list[Tensor]) -> Tensor:
    return torch.stack(values) if values else torch.zeros(0)
