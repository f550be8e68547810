"""Spark's own daemon, which forks its Python workers, with what they all import loaded before: a third of a small job's CPU.

Spark puts its sources first on the path of workers as an archive, out of which each worker would compile them anew; here the
installed package is imported, once. The JVM starts it in place of ``pyspark.daemon`` where the master is local
(``pipeline.spark.session``). Alone in its folder, which is on its path: it knows nothing of the project, and workers have of
that what a job ships. Threads would not survive the fork, so nothing here may start one.
"""

from __future__ import annotations

import gc
import os
import sys

sys.path[:] = [place for place in sys.path if not place.endswith(("/pyspark.zip", "-src.zip"))]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pgpq  # noqa: E402, F401
import pyarrow  # noqa: E402
import pyspark.sql.datasource_internal  # noqa: E402
import pyspark.sql.worker.plan_data_source_read  # noqa: E402
import pyspark.worker  # noqa: E402, F401
from pyspark.daemon import manager  # noqa: E402

if __name__ == "__main__":
    pyarrow.array([""])  # imports pandas, where it is installed
    gc.collect()
    gc.freeze()
    manager()
