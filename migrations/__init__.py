"""Where each app's migrations live, for this site and for any other site that installs the apps.

Another Django project puts ``MIGRATION_MODULES = {**replsite_migrations.MIGRATION_MODULES}`` into its settings
(``from migrations import MIGRATION_MODULES``). Without it Django would find no migrations, say nothing and make no tables;
the system check ``streams.E001`` is there to refuse that.
"""

MIGRATION_MODULES = {
    "streams": "migrations.streams",
    "state": "migrations.state",
    "events": "migrations.events",
    "pipeline": "migrations.pipeline",
}
