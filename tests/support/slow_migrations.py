"""The site's settings with another database, in which two processes that migrate certainly meet: each looks, then rests."""

import os
import time

from django.db.migrations.executor import MigrationExecutor

from replsite.settings import *  # noqa: F403
from replsite.settings import DATABASES

DATABASES["default"]["NAME"] = os.environ["SLOW_DATABASE"]
_made = MigrationExecutor.__init__


def _slowly(executor: MigrationExecutor, *args: object, **options: object) -> None:
    _made(executor, *args, **options)
    time.sleep(3)


MigrationExecutor.__init__ = _slowly
