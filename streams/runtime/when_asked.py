"""Fills a registry when it is first read, so that a command does not import modules that it does not use."""

from __future__ import annotations

import threading
from importlib import import_module

__all__ = ["WhenAsked"]


class WhenAsked:
    """The names of functions that fill a registry.

    Each function is imported and called once, when the registry is first read.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._lock = threading.RLock()

    def add(self, name: str) -> None:
        """Adds a function without arguments, such as ``pipeline.maintenance.registration.register_kinds``."""
        self._names.append(name)

    def call(self) -> None:
        """Calls the functions that were not called yet. Returns when the registry is filled.

        If thread B reads the registry while thread A imports the modules of a function, B waits. Otherwise B would find
        only a part of the entries.
        """
        if not self._names:
            return
        with self._lock:
            while self._names:
                module, _, function = self._names[0].rpartition(".")
                getattr(import_module(module), function)()
                self._names.remove(f"{module}.{function}")
