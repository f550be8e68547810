"""One narrow row for each room, with its name and figures, and the triggers that keep it right whatever program writes.

Older processes: their writes run the triggers, which touch no table that they use.
"""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Lower

_TABLE = "ALTER TABLE events_roomsummary SET (fillfactor = 70)"

#: Content may have an escaped NUL or half a surrogate pair, which PostgreSQL's JSON functions refuse.
_TEXT_OF = r"""
CREATE FUNCTION events_text_of(asked_event text, key text) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    written text;
    found json;
BEGIN
    SELECT convert_from(j.json, 'UTF8') INTO written
    FROM events_eventjson j LEFT JOIN events_event e ON e.event_id = j.event_id
    WHERE j.event_id = asked_event AND e.redacted_by IS NULL;
    found := replace(written, '\u0000', '\ufffd')::json -> 'content' -> key;
    IF json_typeof(found) = 'string' THEN
        RETURN nullif(btrim(left(found #>> '{}', 255)), '');
    END IF;
    RETURN NULL;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END
$$;
"""
_NAME_ROOMS = """
CREATE FUNCTION events_name_rooms(asked_rooms text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    asked text;
    new_name text;
    new_alias text;
BEGIN
    FOREACH asked IN ARRAY asked_rooms LOOP
        SELECT events_text_of(event_id, 'name') INTO new_name FROM events_currentstate
        WHERE room_id = asked AND type = 'm.room.name' AND state_key = '';
        SELECT events_text_of(event_id, 'alias') INTO new_alias FROM events_currentstate
        WHERE room_id = asked AND type = 'm.room.canonical_alias' AND state_key = '';
        UPDATE events_roomsummary
        SET name = new_name, alias = new_alias, words = lower(concat_ws(' ', new_name, new_alias, asked))
        WHERE room_id = asked AND (name, alias) IS DISTINCT FROM (new_name, new_alias);
    END LOOP;
END
$$;
"""
#: A sender may claim any time, but an event cannot be sent after it was received.
_FIGURES = """
CREATE FUNCTION events_moment(claimed_ms bigint, received timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT least(received, to_timestamp(least(greatest(claimed_ms, 0), 99999999999999) / 1000.0))
$$;
CREATE FUNCTION events_size(events bigint) RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
    SELECT floor(ln(greatest(events, 0)::double precision + 1) * 4)::smallint
$$;
CREATE FUNCTION events_day(moment timestamptz) RETURNS date LANGUAGE sql IMMUTABLE AS $$
    SELECT (moment AT TIME ZONE 'UTC')::date
$$;
"""
_SUMMARIZE = """
CREATE FUNCTION events_summarize(asked_rooms text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events_roomsummary (room_id, words, events, size, joined, invited, active_at, active_on)
    SELECT r.room_id, lower(r.room_id), e.events, events_size(e.events), m.joined, m.invited, e.active_at,
        events_day(e.active_at)
    FROM (SELECT room_id FROM events_room WHERE room_id = ANY(asked_rooms) ORDER BY room_id) AS r
    CROSS JOIN LATERAL (
        SELECT count(*) AS events, coalesce(max(events_moment(origin_server_ts, received_at))
            FILTER (WHERE NOT outlier AND NOT soft_failed AND rejected_reason IS NULL), to_timestamp(0)) AS active_at
        FROM events_event WHERE room_id = r.room_id
    ) AS e
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE membership = 'join') AS joined,
            count(*) FILTER (WHERE membership = 'invite') AS invited
        FROM events_currentstate WHERE room_id = r.room_id AND type = 'm.room.member'
    ) AS m
    ON CONFLICT (room_id) DO UPDATE SET events = excluded.events, size = excluded.size, joined = excluded.joined,
        invited = excluded.invited, active_at = excluded.active_at, active_on = excluded.active_on;
    PERFORM events_name_rooms(asked_rooms);
END
$$;
"""
#: Rooms are updated one by one in the order of their IDs: each update has a plan by the primary key, and two
#: transactions with the same rooms cannot deadlock.
_ON_ROOMS = """
CREATE FUNCTION events_room_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM events_summarize(ARRAY(SELECT room_id FROM added));
    ELSE
        DELETE FROM events_roomsummary WHERE room_id = ANY(ARRAY(SELECT room_id FROM gone));
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER events_room_added AFTER INSERT ON events_room REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION events_room_changed();
CREATE TRIGGER events_room_gone AFTER DELETE ON events_room REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION events_room_changed();
"""
_ON_EVENTS = """
CREATE FUNCTION events_event_added() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    room record;
BEGIN
    FOR room IN
        SELECT room_id, count(*) AS events, coalesce(max(events_moment(origin_server_ts, received_at))
            FILTER (WHERE NOT outlier AND NOT soft_failed AND rejected_reason IS NULL), to_timestamp(0)) AS active_at,
            bool_or(redacted_by IS NOT NULL AND type IN ('m.room.name', 'm.room.canonical_alias')) AS renamed
        FROM added GROUP BY room_id ORDER BY room_id
    LOOP
        UPDATE events_roomsummary s SET events = s.events + room.events, size = events_size(s.events + room.events),
            active_at = greatest(s.active_at, room.active_at),
            active_on = events_day(greatest(s.active_at, room.active_at))
        WHERE s.room_id = room.room_id;
        IF room.renamed THEN
            PERFORM events_name_rooms(ARRAY[room.room_id]);
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
CREATE FUNCTION events_event_gone() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    room record;
BEGIN
    FOR room IN SELECT room_id, count(*) AS events FROM gone GROUP BY room_id ORDER BY room_id LOOP
        UPDATE events_roomsummary s SET events = s.events - room.events, size = events_size(s.events - room.events)
        WHERE s.room_id = room.room_id;
    END LOOP;
    RETURN NULL;
END
$$;
CREATE FUNCTION events_event_redacted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM events_name_rooms(ARRAY[NEW.room_id]);
    RETURN NULL;
END
$$;
CREATE TRIGGER events_event_added AFTER INSERT ON events_event REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION events_event_added();
CREATE TRIGGER events_event_gone AFTER DELETE ON events_event REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION events_event_gone();
CREATE TRIGGER events_event_redacted AFTER UPDATE OF redacted_by ON events_event FOR EACH ROW
    WHEN (NEW.type IN ('m.room.name', 'm.room.canonical_alias') AND NEW.redacted_by IS DISTINCT FROM OLD.redacted_by)
    EXECUTE FUNCTION events_event_redacted();
"""
#: Parameters: the rows that came (``+1``) and went (``-1``).
_COUNT_STATE = """
        FOR room IN
            SELECT room_id, coalesce(sum(n) FILTER (WHERE type = 'm.room.member' AND membership = 'join'), 0) AS joined,
                coalesce(sum(n) FILTER (WHERE type = 'm.room.member' AND membership = 'invite'), 0) AS invited,
                bool_or(type IN ('m.room.name', 'm.room.canonical_alias') AND state_key = '') AS renamed
            FROM ({rows}) AS changed GROUP BY room_id ORDER BY room_id
        LOOP
            PERFORM events_count_state(room.room_id, room.joined, room.invited, room.renamed);
        END LOOP;
"""
_ADDED = "SELECT room_id, type, state_key, membership, 1 AS n FROM added"
_GONE = "SELECT room_id, type, state_key, membership, -1 AS n FROM gone"
_ON_STATE = f"""
CREATE FUNCTION events_count_state(asked_room text, joined_more bigint, invited_more bigint, renamed boolean)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF joined_more <> 0 OR invited_more <> 0 THEN
        UPDATE events_roomsummary SET joined = joined + joined_more, invited = invited + invited_more
        WHERE room_id = asked_room;
    END IF;
    IF renamed THEN
        PERFORM events_name_rooms(ARRAY[asked_room]);
    END IF;
END
$$;
CREATE FUNCTION events_currentstate_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    room record;
BEGIN
    IF TG_OP = 'INSERT' THEN
{_COUNT_STATE.format(rows=_ADDED)}
    ELSIF TG_OP = 'UPDATE' THEN
{_COUNT_STATE.format(rows=f"{_ADDED} UNION ALL {_GONE}")}
    ELSE
{_COUNT_STATE.format(rows=_GONE)}
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER events_currentstate_added AFTER INSERT ON events_currentstate REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION events_currentstate_changed();
CREATE TRIGGER events_currentstate_moved AFTER UPDATE ON events_currentstate
    REFERENCING OLD TABLE AS gone NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION events_currentstate_changed();
CREATE TRIGGER events_currentstate_gone AFTER DELETE ON events_currentstate REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION events_currentstate_changed();
"""
_BACK = """
DROP TRIGGER events_room_added ON events_room;
DROP TRIGGER events_room_gone ON events_room;
DROP TRIGGER events_event_added ON events_event;
DROP TRIGGER events_event_gone ON events_event;
DROP TRIGGER events_event_redacted ON events_event;
DROP TRIGGER events_currentstate_added ON events_currentstate;
DROP TRIGGER events_currentstate_moved ON events_currentstate;
DROP TRIGGER events_currentstate_gone ON events_currentstate;
DROP FUNCTION events_room_changed(), events_event_added(), events_event_gone(), events_event_redacted(),
    events_currentstate_changed(), events_count_state(text, bigint, bigint, boolean), events_summarize(text[]),
    events_name_rooms(text[]), events_text_of(text, text), events_moment(bigint, timestamptz), events_size(bigint),
    events_day(timestamptz);
"""


class Migration(migrations.Migration):
    dependencies = [("events", "0013_access_by_room")]

    operations = [
        migrations.CreateModel(
            name="RoomSummary",
            fields=[
                (
                    "room",
                    models.OneToOneField(
                        db_constraint=False,
                        help_text="the room; its ID is the key",
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="summary",
                        serialize=False,
                        to="events.room",
                    ),
                ),
                ("name", models.TextField(help_text="of m.room.name; null: none, or redacted", null=True)),
                ("alias", models.TextField(help_text="of m.room.canonical_alias; null: none, or redacted", null=True)),
                ("words", models.TextField(help_text="name, alias and room ID in lower case, to be searched")),
                ("events", models.BigIntegerField(db_default=0, help_text="stored events, with any verdict")),
                ("size", models.SmallIntegerField(db_default=0, help_text="grows with the logarithm of events")),
                ("joined", models.IntegerField(db_default=0, help_text="members with membership join")),
                ("invited", models.IntegerField(db_default=0, help_text="members with membership invite")),
                (
                    "active_at",
                    models.DateTimeField(
                        help_text="when the newest accepted event was sent, or received if that is earlier; 1970: no such event"
                    ),
                ),
                ("active_on", models.DateField(help_text="the day of active_at in UTC")),
            ],
            options={
                "verbose_name_plural": "room summaries",
                "db_table": "events_roomsummary",
                "indexes": [
                    models.Index(fields=["active_on"], name="events_roomsummary_active"),
                    models.Index(fields=["size"], name="events_roomsummary_size"),
                    models.Index(fields=["joined"], name="events_roomsummary_joined"),
                    models.Index(Lower("name"), name="events_roomsummary_name"),
                ],
            },
        ),
        migrations.RunSQL(_TABLE, migrations.RunSQL.noop),
        migrations.RunSQL(_TEXT_OF + _NAME_ROOMS + _FIGURES + _SUMMARIZE + _ON_ROOMS + _ON_EVENTS + _ON_STATE, _BACK),
    ]
