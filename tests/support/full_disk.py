"""Disks that are full: a device, and a small file system."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

FULL = Path("/dev/full")
#: Some containers give the device to root alone.
needs_full_disk = pytest.mark.skipif(not os.access(FULL, os.W_OK), reason=f"no {FULL} here that this user may write")


@contextmanager
def small_file_system(folder: Path, megabytes: int) -> Iterator[None]:
    """Makes the folder a file system of its own inside the block. Skips the test without the right to mount one."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o711)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=711", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no right to mount a small file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_disk(folder: Path) -> Path:
    """Leaves not a byte free in the folder's file system; the file that takes the room."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler
