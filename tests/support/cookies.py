"""The cookie of a browser that is logged in, for clients of these tests."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["session_cookie"]


def session_cookie(user: Any) -> str:
    """The cookie of somebody who is logged in."""
    from django.conf import settings
    from django.test import Client

    os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    client = Client()
    client.force_login(user)
    return f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"
