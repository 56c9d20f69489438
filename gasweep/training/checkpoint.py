"""Checkpoints of one run: atomic, verified, and readable under another strategy or number of ranks.

    run_directory/checkpoints/<attempted optimizer steps>/
        tensors.pt, or the shards of torch.distributed.checkpoint
        checkpoint.json     progress, and the SHA-256 of every other file

A folder appears under its name only when it is complete and synced to disk. No random state is stored: every
random number is keyed by the step that uses it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch

from gasweep.errors import UserError
from gasweep.training.build import Trainer
from gasweep.training.progress import RunProgress
from gasweep.training.tensors import optimizer_layout, state_tensors

VERSION = 1
META_FILE = "checkpoint.json"
KEPT = 2


class CheckpointStore:
    """Writes and finds the checkpoints of one run. `run_directory` must be the same folder for every rank
    (a shared file system, where ranks are on several nodes)."""

    def __init__(self, run_directory: Path, trainer: Trainer) -> None:
        self._folder = run_directory / "checkpoints"
        self._trainer = trainer
        self._strategy = trainer.parts.strategy
        self._first_rank = trainer.parts.process.rank == 0

    def save(self, progress: RunProgress) -> None:
        """Collective. After it, a resumed run continues from exactly here."""
        final = self._folder / f"{progress.attempted:012d}"
        if self._agree(int(self._first_rank and final.exists() and self._damage(final) is None)):
            return
        temporary = self._folder / f".writing-{progress.attempted:012d}"
        if self._first_rank:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        self._agree(0)
        self._strategy.write_tensors(state_tensors(self._trainer), temporary)
        self._agree(0)
        if self._first_rank:
            self._write_meta(temporary, progress)
            shutil.rmtree(final, ignore_errors=True)
            os.rename(temporary, final)
            _sync(self._folder)
            self._remove_all_but(final)

    def load(self) -> RunProgress | None:
        """Restore the newest checkpoint that is whole, and its progress; None: there is none. Collective.

        A damaged one is passed over with a warning. Raises UserError when a whole checkpoint does not fit
        the run (its task or optimizer changed under the same run directory).
        """
        chosen = self._agree(self._newest_whole() if self._first_rank else 0)
        if not chosen:
            return None
        folder = self._folder / f"{chosen - 1:012d}"
        meta: dict[str, Any] = json.loads((folder / META_FILE).read_text())
        tensors = state_tensors(self._trainer, optimizer=meta["optimizer"])
        try:
            self._strategy.read_tensors(tensors, folder)
        except (ValueError, RuntimeError) as error:
            raise UserError(
                f"checkpoint {folder} does not fit this run ({' '.join(str(error).split())}); remove it to "
                "start the run again, or restore the task it was made with"
            ) from error
        scaler = self._trainer.parts.precision.scaler
        if scaler is not None:
            scaler.load_state_dict(meta["scaler"])
        self._trainer.accumulator.load_state_dict(meta["accumulator"])
        return RunProgress.from_dict(meta["progress"])

    def remove(self) -> None:
        """Forget every checkpoint: the run has its result."""
        if self._first_rank:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write_meta(self, folder: Path, progress: RunProgress) -> None:
        scaler = self._trainer.parts.precision.scaler
        meta = {
            "version": VERSION,
            "run_id": self._trainer.parts.spec.run_id,
            "progress": progress.to_dict(),
            "optimizer": optimizer_layout(self._trainer),
            "scaler": None if scaler is None else scaler.state_dict(),
            "accumulator": self._trainer.accumulator.state_dict(),
            "files": {path.name: _sha256(path) for path in sorted(folder.iterdir())},
        }
        (folder / META_FILE).write_text(json.dumps(meta))
        for path in folder.iterdir():
            _sync(path)
        _sync(folder)

    def _newest_whole(self) -> int:
        """1 + attempted steps of the newest usable checkpoint, 0 when there is none."""
        for folder in sorted(self._folder.glob("[0-9]*"), reverse=True):
            reason = self._damage(folder)
            if reason is None:
                return int(folder.name) + 1
            warnings.warn(f"checkpoint {folder} is passed over: {reason}", stacklevel=2)
        return 0

    def _damage(self, folder: Path) -> str | None:
        try:
            meta = json.loads((folder / META_FILE).read_text())
            if meta["version"] != VERSION or meta["run_id"] != self._trainer.parts.spec.run_id:
                return f"it is of version {meta['version']} and run {meta['run_id']}"
            for name, digest in meta["files"].items():
                if _sha256(folder / name) != digest:
                    return f"{name} is damaged"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())}"
        return None

    def _remove_all_but(self, newest: Path) -> None:
        """Keep `newest` and the one before; later ones are of a past that was passed over."""
        earlier = sorted(path for path in self._folder.glob("[0-9]*") if path.name < newest.name)
        kept = {newest, *earlier[-(KEPT - 1) :]}
        for folder in self._folder.iterdir():
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _agree(self, value: int) -> int:
        """Rank 0's value on every rank, once all are here."""
        if self._trainer.parts.process.world_size == 1:
            return value
        return int(self._strategy.all_reduce(torch.tensor(value, dtype=torch.int64)))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
