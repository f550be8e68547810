-- What other services may read:   psql -v ON_ERROR_STOP=1 -d replsite -f reader.sql     as replsite_owner, after each migration.
-- Users, sessions, passwords and the admin's log are not among it. Leave out what nobody reads.

-- Where the writers are, and the epoch that tokens belong to.
GRANT SELECT ON streams_streamposition, streams_epoch TO replsite_reader;
-- The last IDs that the streams gave out: a position above them is wrong, and is not believed. SELECT takes no ID.
GRANT SELECT ON SEQUENCE events_event_stream_seq, events_event_backfill_seq, streams_presence_seq, streams_receipt_seq,
    streams_pushrulechange_seq, streams_pusherchange_seq, streams_cacheinvalidation_seq, streams_devicelistchange_seq,
    streams_todevicemessage_seq, streams_accountdatachange_seq, streams_groupchange_seq TO replsite_reader;
-- A look, that is, up to where all facts are there now, and who holds a stream back. Whoever looks sees no other session's statement.
GRANT EXECUTE ON FUNCTION streams_look(text[]) TO replsite_reader;
GRANT SELECT ON streams_holders TO replsite_reader;
-- Events, their bytes and graph; names and figures of rooms.
GRANT SELECT ON events_event, events_eventjson, events_eventedge, events_eventauth, events_room, events_roomsummary,
    events_timelinegap
    TO replsite_reader;
-- States.
GRANT SELECT ON events_currentstate, events_currentstatedelta, state_stategroup, state_stategroupdelta TO replsite_reader;
-- Who sees what.
GRANT SELECT ON events_eventvisibility, events_visibleevent, events_roomaccess, events_forgottenroom, events_ignoreduser,
    events_eraseduser, events_feedentry, events_feedposition TO replsite_reader;
