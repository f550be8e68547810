"""The version of this program, as it is stored and shown."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata

UNRELEASED = "unreleased"


@lru_cache(maxsize=1)
def program_version() -> str:
    """Returns the installed version, or ``UNRELEASED`` if the program runs from a checkout that was not installed."""
    try:
        return metadata.version("replsite")
    except metadata.PackageNotFoundError:
        return UNRELEASED
