"""Cancels the Spark jobs that a site's job has started, if this job is to stop. Runs in Spark's driver.

The job's own thread waits in a call to Spark. So this thread cannot check whether the job is to stop. A second thread
checks this instead, and cancels the Spark jobs. A cancelled task changes nothing in the database, because its
transaction is rolled back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import Error as DjangoError
from django.db import connections

from pipeline.errors import PipelineError
from streams.jobs.errors import JobError
from streams.runtime.logs import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["cancelled_steps"]

log = get_logger(__name__)
_STEP_SECONDS = 1.0
_CANCEL_SECONDS = 0.2
_GROUP_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


@contextmanager
def cancelled_steps(step: Callable[[], None], spark: SparkSession, group: str, description: str = "") -> Iterator[None]:
    """Calls ``step`` about once a second, in another thread, while the block runs Spark jobs.

    If ``step`` raises a ``JobError`` or a ``PipelineError``, the block's Spark jobs are cancelled and the block ends with
    that error. The Spark jobs that the block starts have the job group ``group``. Other Spark jobs are not cancelled.
    ``description`` describes the Spark jobs on Spark's page, until the block sets another description.
    """
    context = spark.sparkContext
    context.setJobGroup(group, description or group, interruptOnCancel=True)
    watcher = _Watcher(step, context, group)
    watcher.start()
    try:
        yield
    except Exception:
        watcher.stop()
        if watcher.reason is not None:
            raise watcher.reason from None
        raise
    finally:
        watcher.stop()
        for name in _GROUP_PROPERTIES:
            context.setLocalProperty(name, None)  # type: ignore[arg-type]  # None removes it
    if watcher.reason is not None:
        raise watcher.reason


class _Watcher(threading.Thread):
    def __init__(self, step: Callable[[], None], context: Any, group: str) -> None:
        super().__init__(name="spark steps", daemon=True)
        self._step, self._context, self._group = step, context, group
        self._over = threading.Event()
        self.reason: JobError | PipelineError | None = None

    def stop(self) -> None:
        """Ends this thread and waits for its end."""
        self._over.set()
        self.join()

    def run(self) -> None:
        while self.reason is None and not self._over.wait(_STEP_SECONDS):
            try:
                self._step()
            except (JobError, PipelineError) as error:
                self.reason = error
            except DjangoError as error:  # the work itself will fail too, if the database stays away
                log.warning("job.not_looked", error=str(error))
        connections.close_all()  # closes the connections of this thread only
        while self.reason is not None and not self._over.is_set():
            # Repeated until the block ends: cancelling affects running jobs only, and the work may start the next one.
            self._context.cancelJobGroup(self._group)
            self._over.wait(_CANCEL_SECONDS)
