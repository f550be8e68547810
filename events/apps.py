"""The Django app of the room ``events``."""

from django.apps import AppConfig


class EventsConfig(AppConfig):
    """The ``events`` app.

    Its label and key type are fixed, so that a project that installs it gets no migrations of its own.
    """

    name = "events"
    label = "events"
    verbose_name = "Events"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Registers generated events for the load generator, and the classes that find state changes in rows."""
        from events.declarations import BACKFILL, EVENTS  # noqa: PLC0415
        from events.load_generator import BackfillLoad, EventLoad  # noqa: PLC0415 - needs the models
        from events.persist.state_changes import BackfillStateChanges, EventsStateChanges  # noqa: PLC0415
        from streams import load_generator, registry  # noqa: PLC0415

        load_generator.register("events", EventLoad)
        load_generator.register("backfill", BackfillLoad)
        registry.get(EVENTS.name).state_changes = EventsStateChanges()
        registry.get(BACKFILL.name).state_changes = BackfillStateChanges()
