"""``manage.py compress_state``: the former name of ``manage.py room compress``."""

from __future__ import annotations

from streams.jobs.command import FormerName

__all__ = ["Command"]


class Command(FormerName):
    words = "room compress"
