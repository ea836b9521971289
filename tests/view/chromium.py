"""A headless Chromium that selenium drives, and a viewer that it opens."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--lang=en"),
    "--force-color-profile=srgb",
)


@contextmanager
def chromium(width: int = 1280, height: int = 860) -> Iterator[Any]:
    """A browser without a profile of its own. Debian's packages: chromium, chromium-driver."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = shutil.which("chromedriver") or "chromedriver"
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        try:
            yield browser
        finally:
            browser.quit()


@contextmanager
def viewer(*folders: Path, current: Path | None = None) -> Iterator[str]:
    """`burnish view` as a process; yields the URL that it prints. `current` is its working folder."""
    command = [sys.executable, "-m", "burnish", "view", *map(str, folders), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=current)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if (match := re.search(r"http://\S+/open/[\w-]+", line)) is not None:
                yield match.group()
                break
        else:
            raise AssertionError("the viewer printed no URL")
    finally:
        process.terminate()
        process.wait()
