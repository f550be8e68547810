"""The process that appends rows staged by Spark tasks: ``python -m pipeline.source.append_process``.

The process reads its work as one JSON object from standard input. The process does not load the site's Django settings.
The process makes its own settings from the connection string and the writer's name, which are in the JSON object. Exit
status 1 means that nothing was appended. Then the last line on stderr says why.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import django
import psycopg2.extensions
from django.conf import settings

__all__ = ["database_settings", "main"]

_USING = "default"


def database_settings(dsn: str) -> dict[str, Any]:
    """Returns Django's settings for the database of a libpq connection string."""
    parts = psycopg2.extensions.parse_dsn(dsn)
    named = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    found: dict[str, Any] = {key: parts.pop(name, "") for key, name in named.items()}
    options = {**parts, "application_name": "replsite spark append", "connect_timeout": 10}
    return {"ENGINE": "django.db.backends.postgresql", **found, "OPTIONS": options}


def main() -> int:
    """Appends the facts that standard input describes, and drops old staging tables. Returns the exit status."""
    work = json.load(sys.stdin)
    settings.configure(
        DATABASES={_USING: database_settings(work["dsn"])},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.postgres", "streams", "streams.catalog"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
        LOGGING_CONFIG=None,
        REPLSITE_INSTANCE=work["writer"],
    )
    django.setup()
    from pipeline.errors import PipelineError  # noqa: PLC0415 - after Django is set up
    from pipeline.source.append_staged import StagedWrite, append_staged, sweep  # noqa: PLC0415
    from streams.db.driver import DatabaseError, explain  # noqa: PLC0415
    from streams.errors import StreamError  # noqa: PLC0415
    from streams.writing.process import retire_all  # noqa: PLC0415

    attempts = tuple((attempt, rows) for attempt, rows in work["attempts"])
    write = StagedWrite(work["stream"], work["write_id"], work["staging"], tuple(work["columns"]), attempts)
    try:
        append_staged(write, _USING)
        sweep(_USING)
    except (PipelineError, StreamError, DatabaseError, django.db.Error) as error:
        sys.stderr.write(f"{explain(error)}\n")
        return 1
    finally:
        retire_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
