"""A real Chromium in front of a running site, for the tests of pages.

With ``REPLSITE_SCREENSHOTS`` set to a folder, what the tests see is kept there as pictures.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
BROWSER = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]
"""Marks of a module that drives the browser."""
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-default-apps", "--disable-dev-shm-usage",
]  # fmt: skip
PASSWORD = "correct horse battery"


def driver_fault() -> str:
    """Why Playwright's driver does not run here; empty when it does."""
    import playwright

    driver = Path(playwright.__file__).parent / "driver" / "node"
    done = subprocess.run([driver, "--version"], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


class Site:
    """A site that was started, and can be stopped and started again on its port."""

    def __init__(self, start_manage, port: int) -> None:
        self._start, self._port = start_manage, port
        self.address = f"http://127.0.0.1:{port}"
        self.start()

    def start(self) -> None:
        self.process = self._start("serve", "--http", f"127.0.0.1:{self._port}", "--replication", "127.0.0.1:0")
        ready = self.process.stdout.readline()
        assert ready.startswith("ready "), "the site did not start"
        self.replication = ready.split("replication=")[1].strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def log_in(page, name="boss"):
    """Through the login page, as a person does."""
    page.goto("/")
    page.fill("#id_username", name)
    page.fill("#id_password", PASSWORD)
    page.press("#id_password", "Enter")


def keep(page, name, **options):
    """A picture, where they are asked for."""
    if folder := os.environ.get("REPLSITE_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", **options)


def luminance(page, colour):
    """Mean of red, green and blue of any CSS colour, 0 to 1."""
    return page.evaluate(
        """(colour) => { const c = document.createElement("canvas").getContext("2d");
        c.fillStyle = colour; c.fillRect(0, 0, 1, 1);
        const [r, g, b] = c.getImageData(0, 0, 1, 1).data; return (r + g + b) / 765; }""",
        colour,
    )
