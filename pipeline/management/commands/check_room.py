"""``manage.py check_room``: the former name of ``manage.py room check``."""

from __future__ import annotations

from streams.jobs.command import FormerName

__all__ = ["Command"]


class Command(FormerName):
    words = "room check"
