"""Sums of squares and products over gradients, in fp32 or better whatever the gradient's dtype."""

from __future__ import annotations

import torch
from torch import Tensor

_SERIAL = 1 << 18
_PIECE = 1 << 17
_ROW = 16384


def norm(tensor: Tensor) -> Tensor:
    """Euclidean norm as a 0-dim tensor in fp32 or better: fp64 stays fp64, bf16 is squared in fp32.

    A CPU's reduction adds fp32 squares serially, which lost 1.4e-3 of the norm of 3e7 elements; long tensors
    are therefore cut into pieces whose squares are combined. The cost is the same single pass.
    """
    values = _values(tensor)
    dtype = _wide(values.dtype)
    if values.is_cuda or values.numel() <= _SERIAL:
        return _vector_norm(values, dtype=dtype)
    flat = values.reshape(-1)
    if flat.dtype == dtype:
        return torch.stack([torch.dot(piece, piece) for piece in torch.split(flat, _PIECE)]).sum().sqrt()
    rows = flat.numel() // _ROW
    parts = _vector_norm(flat[: rows * _ROW].view(rows, _ROW), dim=1, dtype=dtype)
    rest = _vector_norm(flat[rows * _ROW :], dtype=dtype)
    return _vector_norm(torch.cat([parts, rest.reshape(1)]))


def norms(tensors: list[Tensor]) -> Tensor:
    """`norm` of each, shape [len(tensors)], in one multi-tensor call where that is as exact."""
    if not tensors:
        return torch.zeros(0)
    first = tensors[0].dtype
    if not first.is_complex and all(t.dtype == first and _may_fuse(t) for t in tensors):
        wide = _wide(first)
        return torch.stack(torch._foreach_norm(tensors, 2, dtype=None if wide == first else wide))
    return torch.stack([norm(tensor) for tensor in tensors])


def dot(left: Tensor, right: Tensor) -> Tensor:
    """Σ left · right, 0-dim, in fp32 or better, added pairwise."""
    wide = torch.promote_types(_wide(left.dtype), right.dtype)
    return (left.to(wide) * right.to(wide)).sum()


def weighted_square(tensor: Tensor, weight: Tensor) -> Tensor:
    """Σ weight · tensor², 0-dim, in fp32 or better."""
    wide = tensor.to(_wide(tensor.dtype))
    return (wide * wide).mul_(weight).sum()


def head(tensor: Tensor, count: int) -> Tensor:
    """A copy of the first `count` elements in row-major order, in fp32 or better."""
    wide = _wide(tensor.dtype)
    if tensor.dtype == wide and not tensor.is_sparse and tensor.is_contiguous():
        return tensor.as_strided((min(count, tensor.numel()),), (1,)).clone()
    first = tensor
    if first.is_sparse:
        rows = torch.arange(min(count, first.shape[0]), device=first.device)
        first = first.index_select(0, rows).to_dense()
    while first.dim() > 1 and first.numel() > 0 and first[:1].numel() >= count:
        first = first[0]
    flat = first[:count] if first.dim() > 0 else first
    if flat.dim() != 1:
        flat = flat.reshape(-1)[:count]
    return flat.clone() if flat.dtype == wide else flat.to(wide)


def _vector_norm(values: Tensor, *, dim: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
    result: Tensor = torch.linalg.vector_norm(values, dim=dim, dtype=dtype)
    return result


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(torch.float32, dtype)


def _may_fuse(tensor: Tensor) -> bool:
    return (tensor.is_cuda or tensor.numel() <= _SERIAL) and not tensor.is_sparse


def _values(tensor: Tensor) -> Tensor:
    values = tensor.coalesce().values() if tensor.is_sparse else tensor
    return torch.view_as_real(values) if values.is_complex() else values
