"""Spark's own daemon, which forks its Python workers, with what they all import loaded before: a third of a small job's CPU.

Spark puts its sources first on the path of workers as an archive, out of which each worker would compile them anew; here the
installed package is imported, once. Started by the JVM in place of ``pyspark.daemon`` (``tests.session`` says so); it knows
nothing of the project, so workers have of it what a job ships, as elsewhere.
"""

from __future__ import annotations

import gc
import sys

sys.path[:] = [place for place in sys.path if not place.endswith(("/pyspark.zip", "-src.zip"))]

import pyarrow  # noqa: E402, F401
import pyspark.sql.datasource_internal  # noqa: E402
import pyspark.sql.worker.plan_data_source_read  # noqa: E402
import pyspark.worker  # noqa: E402, F401
from pyspark.daemon import manager  # noqa: E402

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
