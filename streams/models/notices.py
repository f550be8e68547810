"""The table of notices: messages that tell people that the site is wrong, or well again."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

__all__ = ["Notice"]


class Notice(models.Model):
    """A message that the site is wrong, or well again, with the channels on which it was not delivered yet.

    One process of the site (``replsite.notices``) decides on it and sends it. The last row tells what people were told.
    """

    key = models.UUIDField(unique=True, help_text="the same whenever the message is sent again")
    at = models.DateTimeField(db_default=Now())
    word = models.TextField(help_text="wrong, or well")
    sentence = models.TextField(help_text="the worst trouble, or how long it has been well")
    problems = models.JSONField(default=list, help_text="what is wrong: subject, word, sentence")
    waiting = models.JSONField(default=list, help_text="channels on which it is not delivered yet")
    attempts = models.IntegerField(db_default=0, help_text="failed attempts at them")
    tried_at = models.DateTimeField(null=True, help_text="when the last of these was")
    error = models.TextField(db_default="", help_text="the last error")

    class Meta:
        db_table = "streams_notice"
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"{self.word} {self.at:%Y-%m-%d %H:%M:%S}"
