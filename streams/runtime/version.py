"""Which version of the program this is, for the rows that processes leave of themselves."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata

__all__ = ["UNRELEASED", "program_version"]

UNRELEASED = "unreleased"


@lru_cache(maxsize=1)
def program_version() -> str:
    """As it was installed; a checkout that was not is ``UNRELEASED``."""
    try:
        return metadata.version("replsite")
    except metadata.PackageNotFoundError:
        return UNRELEASED
