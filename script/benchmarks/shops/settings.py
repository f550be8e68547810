"""Settings of a shop's process: SHOP names the shop, SHOP_DATABASE (JSON) its database."""

import json
import os

SHOP = os.environ["SHOP"]
SECRET_KEY = "only for benchmarks"  # noqa: S105
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# Connections are kept: procrastinate would open one for each task otherwise.
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "CONN_MAX_AGE": None,
        **json.loads(os.environ["SHOP_DATABASE"]),
    }
}
OF_TOOL = {
    "ours": ["streams"],
    "with_procrastinate": ["procrastinate.contrib.django"],
    "with_pgpubsub": ["pgtrigger", "pgpubsub"],
}
INSTALLED_APPS = [*OF_TOOL.get(SHOP, []), "script.benchmarks.shops.goods", f"script.benchmarks.shops.{SHOP}"]
PGTRIGGER_INSTALL_ON_MIGRATE = True
if SHOP == "ours":
    from migrations import MIGRATION_MODULES  # noqa: F401
