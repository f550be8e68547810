"""Registers the room ``pipeline`` with Django."""

from django.apps import AppConfig


class PipelineConfig(AppConfig):
    """The ``pipeline`` app: fixed label and key type, so that installing it elsewhere invents no migrations."""

    name = "pipeline"
    label = "pipeline"
    verbose_name = "Pipeline"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Make the kinds of job and the subjects of maintenance commands known."""
        from pipeline import checks  # noqa: F401, PLC0415 - registers itself
        from pipeline.export.kind import register_exports  # noqa: PLC0415
        from pipeline.feeds.command import register_feeds  # noqa: PLC0415 - models are loaded now
        from pipeline.importing.kind import register_imports  # noqa: PLC0415
        from pipeline.jobs.kinds import register_kinds  # noqa: PLC0415
        from pipeline.live.purge_statistics import register_statistics  # noqa: PLC0415
        from pipeline.maintenance.compress import register_compression  # noqa: PLC0415 - models are loaded now
        from pipeline.maintenance.purge_command import register_purges  # noqa: PLC0415
        from pipeline.maintenance.resync_command import register_resyncs  # noqa: PLC0415

        register_compression()
        register_exports()
        register_feeds()
        register_statistics()
        register_imports()
        register_purges()
        register_resyncs()
        register_kinds()
