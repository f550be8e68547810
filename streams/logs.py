"""Loggers of the rooms: structured, and always through the standard library's ``logging``.

A site that does not configure structlog would otherwise get our lines on its standard output.
"""

from __future__ import annotations

import logging
from typing import cast

import structlog

__all__ = ["get_logger"]


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A structured logger that hands its lines to ``logging.getLogger(name)``, with the site's handlers and levels."""
    wrapped = structlog.wrap_logger(logging.getLogger(name), wrapper_class=structlog.stdlib.BoundLogger)
    return cast("structlog.stdlib.BoundLogger", wrapped)
