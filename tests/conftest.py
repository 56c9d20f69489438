"""How the suite is spread over processes."""

from __future__ import annotations

import pytest

ALONE = ("multiprocess", "ray", "browser", "fault")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start processes of their own run one after another, in one of pytest-xdist's processes;
    the others run beside them."""
    for item in items:
        if any(item.get_closest_marker(name) for name in ALONE):
            item.add_marker(pytest.mark.xdist_group("processes"))
