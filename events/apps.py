"""Registers the room ``events`` with Django."""

from django.apps import AppConfig


class EventsConfig(AppConfig):
    """The ``events`` app: fixed label and key type, so that installing it elsewhere invents no migrations."""

    name = "events"
    label = "events"
    verbose_name = "Events"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Offer made-up events to the load generator; say which rows change the state of rooms."""
        from events.declarations import BACKFILL, EVENTS  # noqa: PLC0415
        from events.load_generator import BackfillLoad, EventLoad  # noqa: PLC0415 - needs the models
        from events.persist.state_changes import BackfillStateChanges, EventsStateChanges  # noqa: PLC0415
        from streams import load_generator, registry  # noqa: PLC0415

        load_generator.register("events", EventLoad)
        load_generator.register("backfill", BackfillLoad)
        registry.get(EVENTS.name).state_changes = EventsStateChanges()
        registry.get(BACKFILL.name).state_changes = BackfillStateChanges()
