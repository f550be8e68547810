"""What the embedded server begins with."""

from __future__ import annotations

import pytest

from replsite.postgres.cluster import shared_buffers_mb

GB = 1024**3


@pytest.mark.parametrize(("memory", "buffers"), [(GB // 2, 128), (2 * GB, 256), (8 * GB, 1024), (64 * GB, 1024)])
def test_buffers_are_an_eighth_of_the_memory_within_bounds(memory, buffers):
    assert shared_buffers_mb(memory) == buffers
