"""The version before this one: what its migrations end with, and its code as it was released (``tests/data``)."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.support.session import PROJECT

#: Code and migrations of the version before, with the tests' own makers of rooms; to be moved on with each release that has
#: migrations: ``git archive VERSION manage.py replsite streams events state pipeline templates migrations
#: tests/support/made_rooms.py tests/support/persisted_rooms.py | xz -9e``. A file and no commit, as an archive of the code has
#: no history.
CODE = PROJECT / "tests" / "data" / "version-before.tar.xz"
LEAVES = {
    "streams": "0012_operators",
    "state": "0003_full_state",
    "events": "0011_purged_rooms",
    "pipeline": "0006_resync",
}


def unpack(folder: Path) -> None:
    """Put its code into the folder."""
    with tarfile.open(CODE) as packed:
        packed.extraction_filter = getattr(
            tarfile, "data_filter", None
        )  # Python 3.11.2 has no filters, newer ones want one
        packed.extractall(folder)
