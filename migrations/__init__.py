"""Where each app's migrations live, for this site and for any other site that installs the apps.

Another Django project writes ``from migrations import MIGRATION_MODULES`` in its settings, or merges the mapping with its
own. Without it Django would find no migrations, say nothing and make no tables; the system check ``streams.E001`` is there
to refuse that.
"""

MIGRATION_MODULES = {
    "streams": "migrations.streams",
    "state": "migrations.state",
    "events": "migrations.events",
    "pipeline": "migrations.pipeline",
}
