"""Shows the tables of the live page on a terminal with colours: once, or again and again in place.

Only a terminal needs this module. It imports ``rich``, which takes a twentieth of the time that a command needs to start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from replsite.live_rows.cells import Column
from replsite.live_rows.cells import Group as PageGroup
from replsite.terminal.tables import Content, rows_of

_STYLES = {"fine": "green", "note": "blue", "warning": "yellow", "wrong": "bold red"}


def show(content: Content) -> None:
    """Prints the headline and the tables."""
    Console().print(_drawn(content))


@contextmanager
def updating() -> Iterator[Callable[[Content], None]]:
    """Uses the whole terminal while the ``with`` block runs. Yields the function that replaces the shown page by a new one."""
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        yield lambda content: live.update(_drawn(content), refresh=True)


def _drawn(content: Content) -> Group:
    tables = [_table(columns, groups, content.as_of) for columns, groups in content.tables]
    return Group(Text(content.headline, style=_STYLES[content.severity]), *tables)


def _table(columns: Sequence[Column], groups: Sequence[PageGroup], now: datetime) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for column in columns:
        table.add_column(column.title, justify="right" if column.number else "left", overflow="fold")
    for severity, head, cells in rows_of(groups, now):
        texts = [Text(cell, style="bold" if head and index == 0 else "") for index, cell in enumerate(cells)]
        texts[1].stylize(_STYLES[severity])
        table.add_row(*texts)
    return table
