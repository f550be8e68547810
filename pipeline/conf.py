"""Gives the settings of the pipeline, as Django's settings have them, as one typed object.

``pipeline.pipeline_settings`` declares them.
"""

from __future__ import annotations

from django.conf import settings

from pipeline.pipeline_settings import PipelineSettings
from streams.declared_settings import from_django

__all__ = ["pipeline_settings"]


def pipeline_settings() -> PipelineSettings:
    """Returns the settings of the pipeline, read from Django's settings."""
    return from_django(PipelineSettings, settings)
