"""Passwords with a quote in them stayed in the stored command lines of processes (0016 ended at a quote).

Older processes: read and write these columns as before; one that starts later stores such a password again.
"""

from django.db import migrations

#: What was stored from a command line, and what quotes it.
_COLUMNS = (
    ("streams_instance", "command"),
    ("streams_statuschange", "sentence"),
    ("streams_writerresolution", "evidence"),
)
_IN_ADDRESS = "(://[^[:space:]:/]*:)[^[:space:]]+@"
_NAMED = "((?:password|passwd|passphrase|pwd|secret|access_token|api[_-]?key)=)"
_QUOTED = "''(?:[^''\\\\]|\\\\.)*''"
_HIDE = f"""
UPDATE {{table}} SET {{column}} = regexp_replace(regexp_replace({{column}},
        '{_IN_ADDRESS}', '\\1***@', 'g'),
        '{_NAMED}(?:{_QUOTED}[^[:space:]&]*|[^[:space:]&]+)', '\\1***', 'gi')
WHERE {{column}} ~ '{_IN_ADDRESS}' OR {{column}} ~* '{_NAMED}';
"""
#: What 0016 left of a quoted password with a blank, up to the quote that ended it.
_HIDE_REST = f"""
UPDATE streams_instance SET command = regexp_replace(command, '{_NAMED}\\*\\*\\* [^'']*''', '\\1***', 'gi')
WHERE command ~* '{_NAMED}\\*\\*\\* [^'']*''';
"""
#: Cut within a password: nothing tells where it would have ended. A port has digits only.
_CUT = "(://[^[:space:]:/]*:)(?![0-9]+$)[^[:space:]]*$"
_HIDE_CUT = f"""
UPDATE streams_instance SET command = regexp_replace(command, '{_CUT}', '\\1***')
WHERE length(command) >= 200 AND command ~ '{_CUT}';
"""


class Migration(migrations.Migration):
    dependencies = [("streams", "0022_asked_retries")]

    operations = [
        migrations.RunSQL(
            [_HIDE.format(table=table, column=column) for table, column in _COLUMNS] + [_HIDE_REST, _HIDE_CUT],
            migrations.RunSQL.noop,
        ),
    ]
