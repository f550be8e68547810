"""The table of the app ``replsite.api``: the tokens of operators."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

__all__ = ["ApiToken"]


class ApiToken(models.Model):
    """A token for the HTTP API. It acts for its user, with that user's permissions at the time of each request.

    The table has only the token's SHA-256. A token has 256 random bits, so the token cannot be guessed from this hash.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", help_text="the user for whom it acts"
    )
    name = models.TextField(help_text="what it is for")
    digest = models.CharField(max_length=64, unique=True, help_text="SHA-256 of the token, in hexadecimal digits")
    hint = models.TextField(help_text="first characters of the token, to recognise it by")
    read_only = models.BooleanField(db_default=False, help_text="it may only read, whatever its user may")
    created_at = models.DateTimeField(db_default=Now(), help_text="when it was made")
    expires_at = models.DateTimeField(help_text="when it ends by itself")
    revoked_at = models.DateTimeField(null=True, help_text="when it was revoked; null: it was not")
    last_used_at = models.DateTimeField(null=True, help_text="its last request, to the minute; null: never used")

    class Meta:
        db_table = "replsite_apitoken"
        ordering = ["-id"]
        verbose_name = "API token"
        permissions = [("manage_apitokens", "Can see, make and revoke the tokens of all users")]

    def __str__(self) -> str:
        return f"{self.name} ({self.hint}…)"
