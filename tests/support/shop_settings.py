"""The settings of a project of somebody else that has nothing but our streams and an app ``shop``, as a file's text."""

__all__ = ["SHOP_SETTINGS"]

SHOP_SETTINGS = """
import os
import dj_database_url
from migrations import MIGRATION_MODULES as REPLSITE_MIGRATIONS

SECRET_KEY = "only for this test"
INSTALLED_APPS = ["streams", "shop"]
MIGRATION_MODULES = {**REPLSITE_MIGRATIONS}
DATABASES = {"default": dj_database_url.parse(os.environ["DATABASE_URL"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
"""
