"""The life of writers and of the database."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("streams", "0004_catalog")]

    operations = []
