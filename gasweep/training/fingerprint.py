"""One hash of a trained model, the same however its parameters were laid out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def parameter_sha256(state: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 over the name, dtype, shape and bytes of whole parameters and buffers, sorted by name."""
    digests = {}
    for name, tensor in state:
        header = f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode()
        digests[name] = hashlib.sha256(header + _bytes(tensor)).digest()
    return hashlib.sha256(b"".join(digests[name] for name in sorted(digests))).hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
