"""Stops what appends or reads in the background of this process, when a command or the process ends."""

from __future__ import annotations

from collections.abc import Callable

#: Functions that each stop something that works in the background of this process.
before_leaving: list[Callable[[], None]] = []


def stop_background_work() -> None:
    for stop in before_leaving:
        stop()
