"""Registers the package ``pipeline`` with Django."""

from importlib.util import find_spec

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured


class PipelineConfig(AppConfig):
    """The app ``pipeline``.

    The app fixes its label and its type of primary keys. So a project that installs the app needs no migrations of its
    own for it.
    """

    name = "pipeline"
    label = "pipeline"
    verbose_name = "Pipeline"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Says that this app writes archives before purges, and which command runs the live pipeline.

        Raises ``ImproperlyConfigured`` if psycopg2 is missing. Spark's tasks need psycopg2, even if Django uses another
        driver for PostgreSQL.
        """
        if find_spec("psycopg2") is None:
            raise ImproperlyConfigured(
                "The app pipeline needs psycopg2, with which Spark's tasks connect, also where Django uses psycopg 3: "
                "pip install psycopg2-binary, or remove pipeline from INSTALLED_APPS."
            )
        from events.maintenance.archiving import archive_with  # noqa: PLC0415 - models are loaded now
        from pipeline import checks  # noqa: F401, PLC0415 - registers itself
        from pipeline.models.statistics import READER  # noqa: PLC0415
        from streams.reading.reader_commands import run_by  # noqa: PLC0415

        run_by(READER, "manage.py pipeline run")
        archive_with("pipeline.archive.before_purge.ParquetArchiver")
