"""Read-only admin pages of the homeserver streams: one for each table of facts."""

from __future__ import annotations

from django.apps import apps
from django.contrib import admin

from streams.admin import FactAdmin
from streams.catalog.models import LABEL
from streams.facts import Fact

for _model in apps.get_app_config(LABEL).get_models():
    if issubclass(_model, Fact):
        admin.site.register(_model, FactAdmin)
