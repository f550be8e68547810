"""A process that appends what Spark tasks have staged, and ends: ``python -m pipeline.source.append_process``.

It is told what to do by one JSON object on its standard input, and needs no Django settings of the site: it makes its own
from the connection string. So it does not know ``REPLSITE_WRITERS``; the name that it writes under is given with the work.
Exit status 1 with a last line on stderr that says why nothing was appended.
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
    """Django's settings of the database that a libpq connection string names."""
    parts = psycopg2.extensions.parse_dsn(dsn)
    named = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    found: dict[str, Any] = {key: parts.pop(name, "") for key, name in named.items()}
    options = {**parts, "application_name": "replsite spark append", "connect_timeout": 10}
    return {"ENGINE": "django.db.backends.postgresql", **found, "OPTIONS": options}


def main() -> int:
    """Append what standard input says."""
    work = json.load(sys.stdin)
    settings.configure(
        DATABASES={_USING: database_settings(work["dsn"])},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.postgres", "streams"],
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
