"""The site: settings, ASGI, the operators' page, metrics and health. No other package imports this one."""

__version__ = "0.1.0"
