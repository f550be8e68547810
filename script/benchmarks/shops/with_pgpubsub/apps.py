"""The listener is registered when the apps are ready."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The app."""

    name = "script.benchmarks.shops.with_pgpubsub"

    def ready(self) -> None:
        """Registers the listener and its trigger."""
        from script.benchmarks.shops.with_pgpubsub import listeners  # noqa: F401, PLC0415
