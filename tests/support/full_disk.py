"""A file on a disk that is full."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FULL = Path("/dev/full")
#: Some containers give the device to root alone.
needs_full_disk = pytest.mark.skipif(not os.access(FULL, os.W_OK), reason=f"{FULL} may not be written by this user")
