"""Finds out which of our other apps a project has installed. The site works without rooms and without the pipeline."""

from __future__ import annotations

from pathlib import Path

from django.apps import apps

_OURS = Path(__file__).resolve().parent.parent


def has(app: str) -> bool:
    """Returns true if our app of that name is installed. Another app of the same name, made by the project, does not count."""
    folder = _OURS.joinpath(*app.split("."))
    return any(config.name == app and Path(config.path).resolve() == folder for config in apps.get_app_configs())
