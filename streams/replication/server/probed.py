"""Health figures of this process's broadcaster. Few commands need a broadcaster, so its module is not imported here."""

from __future__ import annotations

from typing import Protocol


class Probed(Protocol):
    """The part of a broadcaster's interface that health probes use."""

    @property
    def silent_seconds(self) -> float | None: ...


_broadcaster: Probed | None = None


def be_probed(broadcaster: Probed) -> None:
    """Sets the broadcaster whose figures this process's health probes return."""
    global _broadcaster  # noqa: PLW0603 - one per process by its nature
    _broadcaster = broadcaster


def silent_seconds() -> float | None:
    """Returns `Broadcaster.silent_seconds` of this process's broadcaster; None if there is no broadcaster."""
    return None if _broadcaster is None else _broadcaster.silent_seconds
