"""Headless Chromium for tests of the report: Debian's browser and driver, nothing downloaded."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gasweep.report.data import ReportData
from gasweep.report.html import write_report
from tests.report import examples

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
REQUIRED = bool(os.environ.get("GASWEEP_REQUIRE_BROWSER"))

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def require_browser() -> None:
    """Skip without Chromium, unless the environment says that it must be there."""
    if CHROMIUM and DRIVER:
        return
    message = "needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)"
    if REQUIRED:
        pytest.fail(message)
    pytest.skip(message)


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    """A driver with an own, new profile folder, whose console and network are recorded."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in FLAGS:
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(executable_path=DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def set_view(driver: Any, *, width: int, height: int = 900, scheme: str = "light") -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


class Page:
    """A report opened from its file."""

    def __init__(self, driver: Any, path: Path, *, width: int = 1400) -> None:
        self.driver = driver
        set_view(driver, width=width)
        driver.get_log("performance")
        driver.get_log("browser")
        driver.get(path.as_uri())
        self.settle()

    def settle(self) -> None:
        """Wait until sizes were observed and drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
        )

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, name: str) -> str:
        return str(self.run("return document.getElementById(arguments[0]).textContent", name))

    def output(self, name: str) -> str:
        return str(self.run("return document.getElementById(arguments[0]).value", name))

    def set(self, name: str, value: object, *, event: str = "input") -> None:
        """What a user's input does: the value, then its event."""
        self.run(
            "const it = document.getElementById(arguments[0]); it.value = arguments[1];"
            "it.dispatchEvent(new Event(arguments[2], { bubbles: true }))",
            name,
            str(value),
            event,
        )
        self.settle()

    def choose(self, axis: str, value: int) -> None:
        self.set(f"compose-{axis}-exact", value, event="change")

    def press(self, name: str, *keys: str) -> None:
        self.driver.find_element("id", name).send_keys(*keys)
        self.settle()

    def memory(self) -> str:
        return str(self.run("return document.getElementById('memory-fill').style.width"))

    def overflow(self) -> int:
        return int(self.run("return document.documentElement.scrollWidth - window.innerWidth"))

    def console(self) -> list[Any]:
        return list(self.driver.get_log("browser"))

    def requests(self) -> list[str]:
        """Everything the page asked for."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]


def opened(driver: Any, folder: Path, data: ReportData | None = None, *, width: int = 1400) -> Page:
    path = write_report(examples.report_data() if data is None else data, folder / "report.html")
    return Page(driver, path, width=width)


def column(page: Page, index: int) -> list[str]:
    """The cells of one column of the table of runs, as shown."""
    return list(
        page.run(
            "return [...document.querySelectorAll('#runs-table tbody tr')]"
            ".map((row) => row.cells[arguments[0]].textContent)",
            index,
        )
    )


def head(page: Page, name: str) -> int:
    names = page.run(
        "return [...document.querySelectorAll('#runs-table th')].map((cell) => cell.textContent)"
    )
    return int(names.index(name))
