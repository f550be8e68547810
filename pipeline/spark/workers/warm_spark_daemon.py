"""Imports the modules that all Python workers need, then starts Spark's daemon, which forks the workers.

So a small Spark job takes a third less CPU time than if each worker imported these modules.

Spark puts its own sources first on the workers' path, as an archive. Each worker would compile these sources again.
This module imports the installed package ``pyspark`` instead, once for all workers. The JVM starts this module in place
of ``pyspark.daemon`` if the master is local (``pipeline.spark.session``).

This module is alone in its folder, because the folder is on the workers' path. This module must not import the project,
because workers get the project's code from an archive that the Spark session sends. This module must not start threads
either, because threads do not survive a fork.
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
