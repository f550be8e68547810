"""The site's settings as a project with the old kind of keys would have them: the apps must not notice."""

from replsite.settings import *  # noqa: F403

DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
