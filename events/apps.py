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
        """Registers the app's system checks, its generators for the load generator, and the state changes of its streams."""
        from events import checks  # noqa: F401, PLC0415 - registers itself
        from events.declarations import BACKFILL, EVENTS  # noqa: PLC0415
        from events.persist.state_changes import BackfillStateChanges, EventsStateChanges  # noqa: PLC0415
        from streams import load_generator, registry  # noqa: PLC0415

        load_generator.register("events", "events.load_generator.EventLoad")
        load_generator.register("backfill", "events.load_generator.BackfillLoad")
        registry.get(EVENTS.name).state_changes = EventsStateChanges()
        registry.get(BACKFILL.name).state_changes = BackfillStateChanges()
