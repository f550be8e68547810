"""The Django app ``events``."""

from django.apps import AppConfig


class EventsConfig(AppConfig):
    """The configuration of the app ``events``.

    The label and the type of primary keys are fixed. So a project that installs the app gets no migrations of its own
    for it.
    """

    name = "events"
    label = "events"
    verbose_name = "Events"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Registers event generators with the load generator, and classes that find state changes with the streams."""
        from events.declarations import BACKFILL, EVENTS  # noqa: PLC0415
        from events.load_generator import BackfillLoad, EventLoad  # noqa: PLC0415 - needs the models
        from events.persist.state_changes import BackfillStateChanges, EventsStateChanges  # noqa: PLC0415
        from streams import load_generator, registry  # noqa: PLC0415

        load_generator.register("events", EventLoad)
        load_generator.register("backfill", BackfillLoad)
        registry.get(EVENTS.name).state_changes = EventsStateChanges()
        registry.get(BACKFILL.name).state_changes = BackfillStateChanges()
