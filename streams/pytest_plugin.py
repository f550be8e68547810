"""The pytest plugin: the fixture ``handled``.

The plugin is installed with the package, so that no test has to name the plugin.

Writer names are released around tests by ``streams.testing.prepare``, with this plugin or without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

__all__ = ["handled"]


@pytest.fixture
def handled() -> Any:
    """Fixture that returns the context manager ``streams.testing.handled``."""
    return import_module("streams.testing").handled  # Django's settings are not there when pytest loads its plugins
