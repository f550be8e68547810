"""The stored form of an error: one bounded, printable line without secrets (pure, except that it reads the settings).

More people see stored text than see a log, because it is shown on pages, and sent in JSON and in alerts.
"""

from __future__ import annotations

from django.conf import settings

from streams.conf import stream_settings
from streams.declared_settings import secrets_of
from streams.errors import StreamError
from streams.runtime.masking import masked
from streams.runtime.text import error_words, safe_text, storable

LONGEST = 500


def error_text(error: BaseException) -> str:
    """Returns the type and message of an error on one line of at most ``LONGEST`` characters.

    For a ``StreamError`` with a message, the type is left out.
    """
    message = storable(error_words(error))
    text = message if isinstance(error, StreamError) and message else f"{type(error).__name__}: {message}".rstrip(": ")
    return safe_text(without_secrets(text), None)[:LONGEST]


def without_secrets(text: str) -> str:
    """Returns the text with the site's secrets, passwords in addresses, and values named as secrets replaced by ``***``."""
    passwords = [str(database.get("PASSWORD") or "") for database in settings.DATABASES.values()]
    return masked(text, [str(settings.SECRET_KEY), *secrets_of(stream_settings()), *passwords])
