"""Records the logins of staff in the admin's log."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.signals import user_logged_in

LOGGED_IN = "Logged in"
"""The first words of an entry about a login."""


def record_logins() -> None:
    """Begins to record logins. Called once, when Django is ready."""
    user_logged_in.connect(_record, dispatch_uid="replsite.logins")


def _record(sender: Any, request: Any, user: Any, **_: Any) -> None:
    # Without a request: ``Client.force_login``, for example.
    if not user.is_staff or getattr(request, "method", None) is None:
        return
    address = request.META.get("REMOTE_ADDR", "")
    text = f"{LOGGED_IN} from {address}." if address else f"{LOGGED_IN}."
    LogEntry.objects.log_actions(user.pk, [user], CHANGE, change_message=text, single_object=True)
