"""A command imports no library that only servers use."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.session import PROJECT


def test_a_command_does_not_import_twisted(tmp_path):
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "manage.py", "help"],
        cwd=PROJECT,
        env={**os.environ, "REPLSITE_DATA_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "replsite.settings"},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert "structlog" in imported
    assert not [name for name in imported if name.partition(".")[0] == "twisted"]
