"""What the embedded server begins with."""

from __future__ import annotations

import pytest

from replsite.postgres.server import _machine_bytes, shared_buffers_mb

GB = 1024**3


@pytest.mark.parametrize(("memory", "buffers"), [(GB // 2, 128), (2 * GB, 256), (8 * GB, 1024), (64 * GB, 4096)])
def test_buffers_are_an_eighth_of_the_memory_within_bounds(memory, buffers):
    assert shared_buffers_mb(memory, durable=True) == buffers


def test_a_server_of_tests_has_few_buffers_to_look_through():
    assert shared_buffers_mb(64 * GB, durable=False) == 128


def test_the_limit_of_a_container_counts(tmp_path):
    limit = tmp_path / "memory.max"
    whole = _machine_bytes(limit)
    limit.write_text("max\n")
    assert _machine_bytes(limit) == whole > 0
    limit.write_text("1048576\n")
    assert _machine_bytes(limit) == 1024**2
