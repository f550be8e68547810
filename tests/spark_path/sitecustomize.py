"""What every Python process that tests start does first.

It collects garbage as seldom as pytest's own process does: while modules are loaded there is none, and looking for it took an
eighth of a start's CPU.

Processes that a JVM of Spark starts import the installed packages, whose modules are compiled. Spark puts archives of its sources
first on their path. From these, each process would compile all of them again: 0.9 s of CPU instead of 0.3, for each start of a
streaming query and each kind of planner. The daemon that forks workers does the same for its own path
(``pipeline.spark.workers.warm_spark_daemon``).
"""

from __future__ import annotations

import gc
import sys

gc.set_threshold(10_000, 20, 20)
sys.path[:] = [place for place in sys.path if not place.endswith(("/pyspark.zip", "-src.zip"))]
