"""The sizes at which a benchmark of growth measures."""

from __future__ import annotations

import os

__all__ = ["sizes"]


def sizes(usual: str) -> list[int]:
    """Those of ``script/bench --sizes``, in ascending order; left out: the usual ones."""
    return sorted(int(size) for size in (os.environ.get("REPLSITE_BENCH_SIZES") or usual).split(","))
