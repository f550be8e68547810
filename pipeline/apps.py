"""Registers the room ``pipeline`` with Django."""

from django.apps import AppConfig


class PipelineConfig(AppConfig):
    """The ``pipeline`` app: fixed label and key type, so that installing it elsewhere invents no migrations."""

    name = "pipeline"
    label = "pipeline"
    verbose_name = "Pipeline"
    default_auto_field = "django.db.models.BigAutoField"
