"""A script in a process of its own with an embedded server of its own, which it may kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from replsite.postgres.server import EmbeddedServer
from tests.support.session import PROJECT

__all__ = ["run_on_own_server"]


def run_on_own_server(script: str, folder: Path, seconds: float = 280.0) -> Any:
    """Run the Python text with a server in ``folder``; returns what the last line of its output says (JSON)."""
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=PROJECT,
            env={**environment, "REPLSITE_DATA_DIR": str(folder), "DJANGO_SETTINGS_MODULE": "replsite.settings"},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    finally:
        EmbeddedServer(folder).stop()
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
