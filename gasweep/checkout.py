"""Which commit a checkout is at. Reads files only, so that nothing depends on git being installed."""

from __future__ import annotations

import contextlib
from pathlib import Path


def git_revision(checkout: Path) -> str | None:
    """The commit that is checked out there; None where there is no checkout (an installed package)."""
    git = checkout / ".git"
    with contextlib.suppress(OSError):
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        if (git / name).exists():
            return (git / name).read_text().strip()
        for line in (git / "packed-refs").read_text().splitlines():
            if line.endswith(f" {name}"):
                return line.split()[0]
    return None
