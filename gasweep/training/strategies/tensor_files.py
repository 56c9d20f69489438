"""Named tensors on disk, whole or sharded; either form is read by any strategy on any number of ranks."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

WHOLE_FILE = "tensors.pt"


def write_whole(tensors: dict[str, Tensor], folder: Path) -> None:
    """One file holding whole tensors."""
    torch.save({name: tensor.detach().cpu() for name, tensor in tensors.items()}, folder / WHOLE_FILE)


def read_whole(tensors: dict[str, Tensor], folder: Path) -> None:
    """Copy whole tensors into `tensors`, each rank of a sharded one taking its part."""
    stored: dict[str, Tensor] = torch.load(folder / WHOLE_FILE, map_location="cpu", weights_only=True)
    _check_names(tensors, set(stored), folder)
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(_as_placed(stored[name], like=tensor))


def write_sharded(tensors: dict[str, Tensor], folder: Path) -> None:
    """Every rank writes its own shards. Collective."""
    from torch.distributed.checkpoint.state_dict_saver import save

    save(_detached(tensors), checkpoint_id=folder)


def read_sharded(tensors: dict[str, Tensor], folder: Path) -> None:
    """Read what `write_sharded` wrote, on any number of ranks."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    names = set(FileSystemReader(folder).read_metadata().state_dict_metadata)
    _check_names(tensors, names, folder)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*no_dist.*|.*is not initialized.*|.*single process.*")
        load(dict(_detached(tensors)), checkpoint_id=folder, no_dist=not dist.is_initialized())


def _detached(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _as_placed(whole: Tensor, *, like: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return whole
    placed: Tensor = distribute_tensor(
        whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )
    return placed


def _check_names(tensors: dict[str, Tensor], stored: set[str], folder: Path) -> None:
    if set(tensors) != stored:
        different = sorted(set(tensors) ^ stored)
        raise ValueError(f"{folder} does not hold this run's tensors: {different[0]!r} is on one side only")
