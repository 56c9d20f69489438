"""Pictures of a sweep's report at a phone's and a desk's width, as shown in docs/report.md.

    python experiments/report_screenshots.py sweeps/quickstart --out docs/img

Needs Debian's chromium and chromium-driver, and selenium (the dev extra).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from gasweep.report.from_sweep import read_report
from gasweep.report.html import write_report

WIDTHS = (400, 1400)
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
    "--hide-scrollbars",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sweep", type=Path, help="directory of a finished sweep")
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(read_report(arguments.sweep), Path(folder) / "report.html")
        driver = open_browser(Path(folder) / "profile")
        try:
            for width in WIDTHS:
                path = arguments.out / f"report-{width}.png"
                photograph(driver, page, width=width, path=path)
                print(path)
        finally:
            driver.quit()


def open_browser(profile: Path) -> Any:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(executable_path=shutil.which("chromedriver")))


def photograph(driver: Any, page: Path, *, width: int, path: Path) -> None:
    """The whole page at `width` CSS pixels."""
    resize(driver, width, 900)
    driver.get(page.as_uri())
    resize(driver, width, driver.execute_script("return document.documentElement.scrollHeight"))
    driver.save_screenshot(str(path))


def resize(driver: Any, width: int, height: int) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
    )


if __name__ == "__main__":
    main()
