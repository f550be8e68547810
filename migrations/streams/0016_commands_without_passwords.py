"""Command lines of processes were kept as they were typed, with the passwords of addresses in them.

Older processes: read and write these columns as before; one that starts later stores its own command line as it was typed.
"""

from django.db import migrations

#: What was stored from a command line, and what quotes it.
_COLUMNS = (
    ("streams_instance", "command"),
    ("streams_statuschange", "sentence"),
    ("streams_writerresolution", "evidence"),
)
_HIDE = """
UPDATE {table} SET {column} = regexp_replace(regexp_replace({column},
        '(://[^[:space:]:/@"'']*:)[^[:space:]"'']+@', '\\1***@', 'g'),
        '((?:password|passwd|passphrase|pwd)=)[^[:space:]&]+', '\\1***', 'gi')
WHERE {column} ~ '://[^[:space:]:/@"'']*:[^[:space:]"'']+@' OR {column} ~* '(?:password|passwd|passphrase|pwd)=';
"""
#: Cut within a password: nothing tells where it would have ended. A port has digits only.
_HIDE_CUT = """
UPDATE streams_instance SET command = regexp_replace(command, '(://[^[:space:]:/@"'']*:)[^[:space:]"'']*$', '\\1***')
WHERE length(command) >= 200 AND command ~ '://[^[:space:]:/@"'']*:[^[:space:]"'']*$';
"""


class Migration(migrations.Migration):
    dependencies = [("streams", "0015_readers_end")]

    operations = [
        migrations.RunSQL(
            [_HIDE.format(table=table, column=column) for table, column in _COLUMNS] + [_HIDE_CUT],
            migrations.RunSQL.noop,
        ),
    ]
