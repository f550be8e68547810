"""The JSON of all stored events is UTF-8 text: rows from before the constraint are looked at, too.

Pages and syncs are sent as text. So one event that SQL or a damaged copy had stored with other bytes ended every page of its
room, and every sync of its members. Such bytes are escaped as ``bytea`` is, and so become text that is no JSON: the event comes
without content, and `room check` names it. ``decode(convert_from(json, 'UTF8'), 'escape')`` are the bytes of before.

The table is read twice, without a lock that anybody waits for.

Older processes: show such an event without content, as any other whose JSON is damaged.
"""

from django.db import migrations

_IS_TEXT = """
CREATE FUNCTION pg_temp.events_is_text(stored bytea) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN convert_from(stored, 'UTF8') IS NOT NULL;
EXCEPTION WHEN data_exception THEN
    RETURN false;
END
$$;
"""
_ESCAPE = """
UPDATE events_eventjson SET json = convert_to(encode(json, 'escape'), 'UTF8') WHERE NOT pg_temp.events_is_text(json);
DROP FUNCTION pg_temp.events_is_text(bytea);
"""
_VALIDATE = "ALTER TABLE events_eventjson VALIDATE CONSTRAINT events_eventjson_utf8"


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("events", "0021_holds")]

    operations = [migrations.RunSQL(text, migrations.RunSQL.noop) for text in (_IS_TEXT + _ESCAPE, _VALIDATE)]
