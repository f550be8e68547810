"""The ``manage.py`` commands of the engine."""
