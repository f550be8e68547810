"""Where each app's migrations live in a checkout. In an installed wheel they are inside their apps, and this package is not.

Another Django project that uses a checkout writes ``from migrations import MIGRATION_MODULES`` in its settings, or merges
the mapping with its own. Without it Django would find no migrations, say nothing and make no tables; the system check
``streams.E001`` is there to refuse that.

What a migration does stands in its file as text (``docs/explanation/migrations.md``).
"""

MIGRATION_MODULES = {
    "streams": "migrations.streams",
    "streams_catalog": "migrations.streams_catalog",
    "state": "migrations.state",
    "events": "migrations.events",
    "pipeline": "migrations.pipeline",
    "replsite_api": "migrations.replsite_api",
}
