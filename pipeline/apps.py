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
        """Registers the kinds of job, the subjects of maintenance commands, and the command that runs the live pipeline.

        Raises ``ImproperlyConfigured`` if psycopg2 is missing. Spark's tasks need psycopg2, even if Django uses another
        driver for PostgreSQL.
        """
        if find_spec("psycopg2") is None:
            raise ImproperlyConfigured(
                "The app pipeline needs psycopg2, with which Spark's tasks connect, also where Django uses psycopg 3: "
                "pip install psycopg2-binary, or remove pipeline from INSTALLED_APPS."
            )
        from pipeline import checks  # noqa: F401, PLC0415 - registers itself
        from pipeline.live.statistics_table import READER  # noqa: PLC0415
        from streams.jobs import run  # noqa: PLC0415 - models are loaded now
        from streams.maintenance import subjects  # noqa: PLC0415
        from streams.reading.reader_commands import run_by  # noqa: PLC0415

        run_by(READER, "manage.py pipeline run")
        run.register_when_asked("pipeline.maintenance.registration.register_kinds")
        subjects.register_when_asked("pipeline.maintenance.registration.register_subjects")
