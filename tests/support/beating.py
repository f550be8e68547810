"""Rows of readers that were put in by hand go on showing signs of life, as their processes would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from streams.db import driver

_BEAT = """
UPDATE streams_reader SET heartbeat_at = clock_timestamp() WHERE heartbeat_at > clock_timestamp() - interval '1 minute'
"""


@contextmanager
def beating() -> Iterator[None]:
    """Those that showed one within the last minute live on inside."""
    ended = threading.Event()
    connection = driver.direct_connection(application_name="test beats")

    def beat() -> None:
        with connection.cursor() as cursor:
            while not ended.wait(0.5):
                cursor.execute(_BEAT)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        connection.close()
