"""Makes, finds and revokes tokens. The text of a token is shown once, and is not stored."""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import timedelta
from typing import Any

from django.db import DEFAULT_DB_ALIAS
from django.db.models import QuerySet
from django.db.models.functions import Now

from replsite.api.models import ApiToken
from streams.db.clock import database_now

PREFIX = "rsa_"
_TOKEN = re.compile(PREFIX + "[A-Za-z0-9_-]{43}")
_HINT = len(PREFIX) + 4
#: The longest life of a token.
MOST_DAYS = 366
_USE_SECONDS = 60.0


def make_token(user: Any, name: str, days: int = 30, *, read_only: bool = False) -> tuple[ApiToken, str]:
    """Stores a new token of the user. Returns (row of the token, text of the token).

    The text cannot be read again later. Raises ``ValueError`` for an unusable number of days.
    """
    if not 1 <= days <= MOST_DAYS:
        raise ValueError(f"A token lives 1 to {MOST_DAYS} days, not {days}.")
    text = PREFIX + secrets.token_urlsafe(32)
    row = ApiToken.objects.create(
        user=user,
        name=name,
        digest=_digest(text),
        hint=text[:_HINT],
        read_only=read_only,
        expires_at=database_now(DEFAULT_DB_ALIAS) + timedelta(days=days),
    )
    return row, text


def find_token(text: str) -> ApiToken | None:
    """Returns the row of the token with this text, or None if the token is unknown, revoked or expired.

    A token counts as unknown if its user is not active, or is no longer staff. If the text does not have the form of our
    tokens, no query is made.
    """
    if not _TOKEN.fullmatch(text):
        return None
    token = _valid().filter(digest=_digest(text)).first()
    if token is not None:
        _record_use(token)
    return token


def reread_token(token: ApiToken) -> ApiToken | None:
    return _valid().filter(pk=token.pk).first()


def _valid() -> QuerySet[ApiToken]:
    valid = ApiToken.objects.select_related("user").filter(revoked_at=None, expires_at__gt=Now())
    return valid.filter(user__is_active=True, user__is_staff=True)


def revoke_token(token: ApiToken) -> bool:
    """Revokes a token for good. Returns false if it was revoked before."""
    return bool(ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=Now()))


def _record_use(token: ApiToken) -> None:
    # At most once a minute: else every request would add a row version to the table.
    before = Now() - timedelta(seconds=_USE_SECONDS)
    unused = ApiToken.objects.filter(pk=token.pk)
    if token.last_used_at is None:
        unused.filter(last_used_at=None).update(last_used_at=Now())
    else:
        unused.filter(last_used_at__lt=before).update(last_used_at=Now())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
