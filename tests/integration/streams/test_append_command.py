"""``manage.py append``: what it refuses, and how it ends."""

from __future__ import annotations

import signal
import subprocess

import pytest

from streams.catalog.models import CacheInvalidation
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import linear, stored

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("rate", ["0", "0.1"])
def test_an_interrupt_ends_it_with_every_fact_whole(start_manage, rate):
    arguments = ("append", "caches", "--count", "10000000", "--batch", "5", "--threads", "2", "--rate", rate)
    process = start_manage(*arguments, stderr=subprocess.PIPE)
    wait_until(CacheInvalidation.objects.exists)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130
    assert "Traceback" not in said
    count = CacheInvalidation.objects.count()
    assert said.splitlines()[-1] == f"CommandError: Interrupted after {count} facts."
    assert set(stored()) == {"append"} and linear() == CacheInvalidation.objects.latest("stream_id").stream_id
