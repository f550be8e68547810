"""Starts Spark's daemon after importing what all Python workers need. The daemon then forks the workers.

This saves a third of a small job's CPU.

Spark puts its own sources first on the workers' path, as an archive. Each worker would compile these sources again.
Here the installed package is imported instead, once for all workers. The JVM starts this module in place of
``pyspark.daemon`` if the master is local (``pipeline.spark.session``).

This module is alone in its folder, because the folder is on the workers' path. It must not import the project: workers
get the project's code from what a job ships. It must not start threads either, because they would not survive the fork.
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
