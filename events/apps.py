"""The Django app ``events``."""

from django.apps import AppConfig


class EventsConfig(AppConfig):
    """Label and key type are fixed, so that a project that installs the app gets no migrations of its own."""

    name = "events"
    label = "events"
    verbose_name = "Events"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from events import checks  # noqa: F401, PLC0415 - registers itself
        from streams import load_generator  # noqa: PLC0415

        load_generator.register("events", "events.load_generator.EventLoad")
        load_generator.register("backfill", "events.load_generator.BackfillLoad")
