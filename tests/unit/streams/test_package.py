"""What ``from streams import …`` says where the app is not installed."""

from __future__ import annotations

import subprocess
import sys

from tests.support.session import PROJECT

CODE = """
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["django.contrib.contenttypes"])
django.setup()
from streams import Fact
"""


def test_the_app_that_is_missing_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert "ImproperlyConfigured: Add 'streams' to INSTALLED_APPS: streams.Fact needs its tables." in done.stderr
