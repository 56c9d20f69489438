"""No test leaves a sweep running."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from integration_sweep import STARTED


@pytest.fixture(autouse=True)
def _leave_nothing_running() -> Iterator[None]:
    yield
    for process in STARTED:
        if process.poll() is None:
            process.kill()
            process.communicate()
    STARTED.clear()
