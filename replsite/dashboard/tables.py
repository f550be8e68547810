"""Declares the tables of the live page in their order: title, description, and the text while a table is empty (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from replsite.dashboard.cells import Column
from replsite.dashboard.page import JOBS, READERS, ROOMS, STORAGE, STREAMS, WORKERS

__all__ = ["TABLES", "TableSpec"]


@dataclass(frozen=True, slots=True)
class TableSpec:
    """The declaration of a table: its title, its description, its text while it is empty, and its columns.

    The cells of the last column are sentences that explain the status of each row. The page has no column for them. It
    shows each sentence below the row's status word. In a table without status words, it shows the sentence below the
    name.
    """

    title: str
    about: str
    nothing: str
    columns: tuple[Column, ...]
    has_words: bool = True
    """True: the rows have status words."""
    has_menu: bool = False
    """True: the rows have a menu."""

    @property
    def headings(self) -> list[Column]:
        """Returns the columns that have a heading on the page: all except the last column.

        The column of status words is left out, too, if the table has no status words.
        """
        return [column for column in self.columns[:-1] if column.title != "Status" or self.has_words]


TABLES: Mapping[str, TableSpec] = {
    "streams": TableSpec(
        "Streams and writers",
        "How far every writer of every stream is, worst first.",
        "No stream is declared.",
        STREAMS,
        has_menu=True,
    ),
    "readers": TableSpec(
        "Readers and connections",
        "Who follows, and how far behind: what was sent to a connection, what a follower has handled.",
        "No followers. Try: manage.py follow tcp://HOST:PORT",
        READERS,
        has_menu=True,
    ),
    "jobs": TableSpec(
        "Jobs",
        "What is at work or waits, and what ended within a day.",
        "No job is at work, and none ended within a day.",
        JOBS,
        has_menu=True,
    ),
    "storage": TableSpec(
        "Storage",
        "State groups, the database and its largest tables with their indexes. Rows are PostgreSQL's estimates.",
        "Nothing is known of storage.",
        STORAGE,
        has_words=False,
    ),
    "rooms": TableSpec(
        "Biggest rooms",
        "By stored events.",
        "No room is stored.",
        ROOMS,
        has_words=False,
    ),
    "workers": TableSpec(
        "Workers",
        "What workers report, and how connections ended, on all servers.",
        "No worker has reported anything.",
        WORKERS,
        has_words=False,
    ),
}
