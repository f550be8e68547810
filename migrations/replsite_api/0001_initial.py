"""The table of the tokens of the HTTP API."""

import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    """The first table of the app."""

    initial = True
    dependencies = [migrations.swappable_dependency(settings.AUTH_USER_MODEL)]
    operations = [
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.TextField(help_text="what it is for")),
                (
                    "digest",
                    models.CharField(
                        help_text="SHA-256 of the token, in hexadecimal digits", max_length=64, unique=True
                    ),
                ),
                ("hint", models.TextField(help_text="first characters of the token, to recognise it by")),
                (
                    "read_only",
                    models.BooleanField(db_default=False, help_text="it may only read, whatever its user may"),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), help_text="when it was made"
                    ),
                ),
                ("expires_at", models.DateTimeField(help_text="when it ends by itself")),
                ("revoked_at", models.DateTimeField(help_text="when it was revoked; null: it was not", null=True)),
                (
                    "last_used_at",
                    models.DateTimeField(help_text="its last request, to the minute; null: never used", null=True),
                ),
                (
                    "user",
                    models.ForeignKey(
                        help_text="the user for whom it acts",
                        on_delete=models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "db_table": "replsite_apitoken",
                "ordering": ["-id"],
                "verbose_name": "API token",
                "permissions": [("manage_apitokens", "Can see, make and revoke the tokens of all users")],
            },
        ),
    ]
