"""Registers the package ``pipeline`` with Django."""

from django.apps import AppConfig


class PipelineConfig(AppConfig):
    """The app ``pipeline``. Its label and key type are fixed, so that a project that installs it gets no new migrations."""

    name = "pipeline"
    label = "pipeline"
    verbose_name = "Pipeline"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Registers the kinds of job and the subjects of maintenance commands."""
        from pipeline import checks  # noqa: F401, PLC0415 - registers itself
        from pipeline.archive.kind import ArchiveKind  # noqa: PLC0415 - models are loaded now
        from pipeline.archive.restore import RestoreKind  # noqa: PLC0415
        from pipeline.export.kind import ExportKind  # noqa: PLC0415
        from pipeline.feeds.command import register_feeds  # noqa: PLC0415
        from pipeline.importing.kind import ImportKind  # noqa: PLC0415
        from pipeline.jobs import run  # noqa: PLC0415
        from pipeline.jobs.kinds import CensorKind, CheckStreamsKind  # noqa: PLC0415
        from pipeline.live.purge_statistics import register_statistics  # noqa: PLC0415
        from pipeline.maintenance.compress import CompressStateKind  # noqa: PLC0415
        from pipeline.maintenance.purge import PurgeHistoryKind, PurgeOrphansKind, PurgeRetentionKind  # noqa: PLC0415
        from pipeline.maintenance.purge_room import PurgeRoomKind  # noqa: PLC0415
        from pipeline.maintenance.resync import ResyncKind  # noqa: PLC0415
        from pipeline.maintenance.subjects import register_subjects  # noqa: PLC0415

        run.register(
            ArchiveKind(), CensorKind(), CheckStreamsKind(), CompressStateKind(), ExportKind(), ImportKind(),
            PurgeHistoryKind(), PurgeOrphansKind(), PurgeRetentionKind(), PurgeRoomKind(), ResyncKind(), RestoreKind(),
        )  # fmt: skip
        register_feeds()
        register_statistics()
        register_subjects()
