"""The writers of this process, one for each database alias, and their retirement at the end of the process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from streams.conf import on_this_host, stream_settings
from streams.core.names import check_name
from streams.db import driver
from streams.errors import StreamError
from streams.runtime.logs import get_logger
from streams.writing.control_loop import ControlLoop
from streams.writing.writer import Condition, WriterProcess

__all__ = ["before_leaving", "current_writer", "retire_all", "use_instance"]

log = get_logger(__name__)
#: Functions to call before the writers leave. Each stops something that appends in the background of this process.
before_leaving: list[Callable[[], None]] = []
_writers: dict[str, WriterProcess] = {}
_instance: str | None = None
_guard = threading.Lock()


def use_instance(pattern: str) -> None:
    """Sets the name or pattern under which this process writes, instead of ``REPLSITE_INSTANCE``.

    Call this function before the first append. Raises ``BadInstanceName``, a ``ValueError``, for a text that cannot be
    a name.
    """
    global _instance  # noqa: PLW0603 - one name for the process
    check_name(pattern)
    _instance = on_this_host(pattern)


def current_writer(using: str | None = None) -> WriterProcess:
    """Returns this process's writer on that database. A new writer takes its name only at the first reservation."""
    alias = using or stream_settings().database
    writer = _writers.get(alias)
    if writer is None or writer.condition is Condition.CLOSED:
        with _guard:
            writer = _writers.get(alias)
            if writer is None or writer.condition is Condition.CLOSED:
                writer = _writers[alias] = WriterProcess(alias, _instance or stream_settings().instance, ControlLoop)
    return writer


def retire_all() -> bool:
    """Retires the writers of this process. To be called at the end of a command and at an orderly exit.

    Returns false and logs the reason if a writer could not be retired, for example because its database is away. Other
    processes then find that this writer is dead and retire it.
    """
    for stop in before_leaving:
        stop()
    results = [_retire_quietly(writer) for writer in list(_writers.values()) if writer.has_lock]
    return all(results)


def _retire_quietly(writer: WriterProcess) -> bool:
    try:
        return writer.retire()
    except (StreamError, driver.DatabaseError) as error:
        log.warning("writer.not_retired", writer=writer.name, reason=driver.explain(error))
        writer.close()
        return False


def _after_fork() -> None:
    """Clears the writers in a forked child, which must not use its parent's connection, thread or name."""
    global _guard  # noqa: PLW0603
    _writers.clear()
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
