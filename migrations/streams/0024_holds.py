"""Made what the next migration makes, in an earlier form."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("streams", "0023_commands_without_quotes")]

    operations = []
