"""The Django app ``events``."""

from django.apps import AppConfig


class EventsConfig(AppConfig):
    """The configuration of the app ``events``.

    The app's label and its type of primary keys are set here. So the settings of a project cannot change the label or
    the type, and ``makemigrations`` in the project makes no migration for this app.
    """

    name = "events"
    label = "events"
    verbose_name = "Events"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Registers the app's system checks and its generators for the load generator."""
        from events import checks  # noqa: F401, PLC0415 - registers itself
        from streams import load_generator  # noqa: PLC0415

        load_generator.register("events", "events.load_generator.EventLoad")
        load_generator.register("backfill", "events.load_generator.BackfillLoad")
