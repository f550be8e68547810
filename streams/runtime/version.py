"""The version of this program, for the rows that processes write about themselves."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata

__all__ = ["UNRELEASED", "program_version"]

UNRELEASED = "unreleased"


@lru_cache(maxsize=1)
def program_version() -> str:
    """Returns the installed version; ``UNRELEASED`` for a checkout that was not installed."""
    try:
        return metadata.version("replsite")
    except metadata.PackageNotFoundError:
        return UNRELEASED
