"""What code a sweep runs: revision, source digests, versions. Reads files only; imports nothing heavy."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gasweep
from gasweep.checkout import git_revision
from gasweep.config.schema import SweepConfig

PACKAGES = ("gasweep", "torch", "numpy", "ray")
_ROOT = Path(gasweep.__file__).resolve().parent


def provenance(config: SweepConfig) -> dict[str, Any]:
    """Plain data to keep beside a sweep's config; equal for equal code on any machine.

    source_sha256: of gasweep's own sources, so that uncommitted changes count. task_source_sha256: of the
    file that defines the task; what that file imports is not followed.
    """
    return {
        "code_revision": git_revision(_ROOT.parent),
        "source_sha256": _digest(sorted(_ROOT.rglob("*.py"))),
        "task_source_sha256": _task_digest(config),
        "versions": {"python": platform.python_version()} | _versions(),
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _task_digest(config: SweepConfig) -> str | None:
    target = config.task.get("_target_")
    if not isinstance(target, str) or "." not in target:
        return None
    # Finding `a.b.c` imports `a` and `a.b`, which a task's module may refuse for reasons of its own.
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec(target.rpartition(".")[0])
        if spec is not None and spec.origin is not None:
            return _digest([Path(spec.origin)])
    return None


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
