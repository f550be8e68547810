"""A host whose clock is wrong: with this folder in ``PYTHONPATH``, our programs live ``SKEW_SECONDS`` off.

Whatever of ours, and Django's ``timezone``, asks for the time of day is told the wrong one; ``time.monotonic`` is right, as on
such a host. The class ``datetime`` is replaced in those modules only: others are compiled against the real one. The variable is
read at every look, so that a process may be forked from one that has another clock. With ``SKEW_FILE`` the number stands in that
file instead: the clock jumps while the process runs, whenever the file is written.
"""

from __future__ import annotations

import datetime
import importlib.machinery
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOMS = ("replsite", "pipeline", "events", "state", "streams")
_time, _time_ns, _Datetime = time.time, time.time_ns, datetime.datetime


def _skew_seconds() -> float:
    if jumps := os.environ.get("SKEW_FILE"):
        return float(Path(jumps).read_text() or "0")
    return float(os.environ.get("SKEW_SECONDS", "0"))


class _LikeTheRealOne(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Datetime)


class SkewedDatetime(_Datetime, metaclass=_LikeTheRealOne):
    """The same, but for the time that it is now."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return _Datetime.now(tz) + datetime.timedelta(seconds=_skew_seconds())


class _SkewingFinder:
    """Finds modules of ours as they are found otherwise, and sets their clock when they were executed."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in ROOMS and name != "django.utils.timezone":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_skew(module: Any) -> None:
                execute(module)
                if getattr(module, "datetime", None) is _Datetime:
                    module.datetime = SkewedDatetime

            spec.loader.exec_module = execute_and_skew  # type: ignore[method-assign]
        return spec


time.time = lambda: _time() + _skew_seconds()
time.time_ns = lambda: _time_ns() + round(_skew_seconds() * 1e9)
sys.meta_path.insert(0, _SkewingFinder)  # type: ignore[arg-type]
