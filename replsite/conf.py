"""Gives the settings of the site, as Django's settings have them, as one typed object."""

from __future__ import annotations

from django.conf import settings

from replsite.site_settings import SiteSettings
from streams.declared_settings import from_django

__all__ = ["site_settings"]


def site_settings() -> SiteSettings:
    return from_django(SiteSettings, settings)
