"""``manage.py restore``: the former name of ``manage.py room restore``."""

from __future__ import annotations

from streams.jobs.command import FormerName

__all__ = ["Command"]


class Command(FormerName):
    words = "room restore"
