"""Which tests of a parallel run stay in one process: those of a file, and all that share a Spark session."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

__all__ = ["FilesAndSpark"]

#: A session takes ten seconds of CPU to start, and the JVM some more to compile what it runs.
_OF_SPARK = "tests/pipeline"


class FilesAndSpark(LoadFileScheduling):  # type: ignore[misc]
    """``--dist loadfile``, with the tests on Spark as one unit. It is the first one, so that no process is left alone with it."""

    def _split_scope(self, nodeid: str) -> str:
        return _OF_SPARK if nodeid.startswith(f"{_OF_SPARK}/") else str(super()._split_scope(nodeid))
