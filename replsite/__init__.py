"""The site: settings, ASGI, the operators' page, metrics and health. Nothing imports this package."""

__version__ = "0.1.0"
