"""Which tests of a parallel run stay in one process: those of a file, and folders whose tests must not run side by side."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

__all__ = ["FilesAndFolders"]

#: One Spark session, which takes ten seconds of CPU to start; one Chromium at a time, and no torture beside it; one
#: deployment at a time, whose tests copy, restart and fail over the server of their process; the large room parsed once.
_TOGETHER = {
    "tests/pipeline": "Spark",
    "tests/acceptance": "browsers and torture",
    "tests/torture": "browsers and torture",
    "tests/deployment": "deployment",
    "tests/oracle": "oracle",
}


class FilesAndFolders(LoadFileScheduling):  # type: ignore[misc]
    """``--dist loadfile``, with some folders as one unit. These come first, so that no process is left alone with one."""

    def _split_scope(self, nodeid: str) -> str:
        folder = "/".join(nodeid.split("/", 2)[:2])
        return _TOGETHER.get(folder) or str(super()._split_scope(nodeid))
