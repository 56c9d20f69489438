"""One browser for all tests of the report that need one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.report.browser import browser, require_browser


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    require_browser()
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
