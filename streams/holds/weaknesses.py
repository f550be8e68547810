"""Finds what lets a fact go around the holds of its stream, or a stranger delay one (pure: descriptions and one query).

For ``manage.py check_streams``: ``weaknesses`` finds what is wrong now. ``probe`` tries the lock itself on two connections,
because some databases speak PostgreSQL's protocol and do something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from streams.core import lookup
from streams.holds.installed_sql import bodies

__all__ = ["SET_BACK", "Weakness", "imitation", "losing", "probe", "weaknesses"]


@dataclass(frozen=True, slots=True)
class Weakness:
    """One finding: what is wrong, and how to repair it. ``stream`` is empty for what concerns all streams.

    ``loses`` is true if readers can miss facts. Otherwise appends may fail, or a stranger may delay readers.
    """

    stream: str
    problem: str
    fix: str
    loses: bool = True
    kind: str = ""
    table: str = ""
    """The table whose triggers are to be installed again. Empty if that mends nothing."""
    statement: str = ""
    """What the owner of the tables runs to mend it, if ``fix`` is such a statement."""

    @property
    def subject(self) -> str:
        return f"Stream {self.stream!r}" if self.stream else "All streams"


#: Puts back functions, and the view that a later migration has replaced.
_AGAIN = "for number in 0027 0031; do manage.py sqlmigrate streams $number | manage.py dbshell; done"
_INSTALL = "Run again, with the same options: SELECT streams_hold_table('{object}', '{stream}', '{sequence}')"
#: Status word of the record that a looker has moved a sequence forward which somebody had set back.
SET_BACK = "sequence set back"
_APPEND_AGAIN = "Append those facts again. check_streams --repair takes this off the list"
#: Kind of a row of ``_FIND`` -> what is wrong, how to repair it, and whether facts can be lost.
_TEXTS: dict[str, tuple[str, str, bool]] = {
    "gone": ("its sequence is gone, but table {object} still holds it", _INSTALL, False),
    "cache": (
        "sequence {object} has CACHE {detail}: a session gives out IDs that lie below what others hold",
        "ALTER SEQUENCE {object} CACHE 1",
        True,
    ),
    "increment": (
        "sequence {object} has INCREMENT {detail}: IDs must ascend",
        "ALTER SEQUENCE {object} INCREMENT 1",
        True,
    ),
    "cycle": ("sequence {object} begins again at its end", "ALTER SEQUENCE {object} NO CYCLE", True),
    "unlogged": (
        "sequence {object} is unlogged: after a crash it gives out IDs again",
        "ALTER SEQUENCE {object} SET LOGGED; ALTER SEQUENCE {object} NO CYCLE",  # SET LOGGED alone keeps IDs that no WAL has
        True,
    ),
    "missing": ("table {object} has no trigger {detail}", _INSTALL, True),
    "missing in a part": (
        "table {object} has no trigger {detail}; readers may have passed facts that it had before it became a part of another",
        _INSTALL,
        True,
    ),
    "not always": (
        "trigger {detail} of table {object} is not ENABLE ALWAYS, so it can be passed by",
        "ALTER TABLE {object} ENABLE ALWAYS TRIGGER {detail}",
        True,
    ),
    "arguments": (
        "trigger {detail} of table {object} does not hold it, or holds another stream or sequence",
        _INSTALL,
        True,
    ),
    "renamed": (
        "its sequence is called {object}, and its tables look for {detail}",
        "ALTER SEQUENCE {object} RENAME, or SET SCHEMA, so that it is {detail} again. check_streams --repair renames it",
        True,
    ),
    "made again": (
        "its sequence is called {object}, and its tables take their IDs from another one, {detail}",
        "DROP the wrong one; the other one needs the name {detail}. Then: check_streams --repair",
        True,
    ),
    "default": (
        "table {object} takes IDs from {detail}, and not from {sequence}: a fact gets an ID twice, or is refused",
        _INSTALL,
        True,
    ),
    "identity": (
        "column {detail} of table {object} is an identity of its own, and takes no IDs from {sequence}: facts are refused",
        "ALTER TABLE {object} ALTER {detail} DROP IDENTITY; "
        "SELECT streams_hold_table('{object}', '{stream}', '{sequence}'), with the same options as before",
        True,
    ),
    "no default": (
        "column {detail} of table {object} has no default, so only programs that take IDs themselves can append",
        _INSTALL,
        False,
    ),
    "table": (
        "{object} is no ordinary table, so INSERTs into it are not held here",
        "Keep its facts in tables of this database",
        True,
    ),
    "unlogged table": (
        "table {object} is unlogged: a crash of the server empties it, and readers miss what they have not read",
        "ALTER TABLE {object} SET LOGGED",
        True,
    ),
    "policies": (
        "policies of table {object} hide facts from role {detail}, and its readers pass over them",
        "ALTER TABLE {object} DISABLE ROW LEVEL SECURITY",
        True,
    ),
    "subscribed": (
        "table {object} gets facts by subscription {detail}, in the order of their commits: readers here miss late ones",
        "When it has all of them: ALTER SUBSCRIPTION {detail} DISABLE. Then: check_streams --repair",
        True,
    ),
    "number": (
        "table {object} holds the number {detail}, which is not its stream's in streams_held, so no look sees its appends",
        "UPDATE streams_held SET number = {detail} WHERE stream = '{stream}'. If another stream has it, change that first",
        True,
    ),
    "unheld": (
        "table {object} takes IDs from {sequence}, but belongs to no stream",
        "Declare StreamHolds for its model, or give it a sequence of its own",
        True,
    ),
    "function": (
        "function {object} is not that of this version ({detail})",
        f"Run: manage.py migrate. If nothing is to migrate: {_AGAIN}",
        True,
    ),
    "altered": (
        "function {object} was altered: {detail}",
        f"Run: {_AGAIN}",
        True,
    ),
    "may not read": (
        "the owner of streams_hold() may not read sequence {object}",
        "GRANT USAGE, SELECT ON SEQUENCE {object} TO {detail}",
        False,
    ),
    "may not lock": (
        "the owner of streams_hold() may not take advisory locks",
        "GRANT EXECUTE ON FUNCTION pg_try_advisory_xact_lock_shared(bigint) TO {detail}",
        False,
    ),
    "strangers": (
        "every role that may connect can take advisory locks, and delay readers with them",
        "As a superuser: REVOKE EXECUTE ON FUNCTION {object} FROM PUBLIC, and GRANT it to the site's roles",
        False,
    ),
    "setting": (
        "{object} has {detail} for all its sessions, so nothing guards their facts",
        "ALTER {object} RESET {sequence}",
        True,
    ),
    "server setting": (
        "sessions begin with {detail}, so nothing guards their facts",
        "Take {sequence} out of postgresql.conf (ALTER SYSTEM RESET {sequence}), and out of PGOPTIONS",
        True,
    ),
    "set back": (
        "role {detail} may set sequence {object} back, and then its IDs come again",
        "REVOKE UPDATE ON SEQUENCE {object} FROM {detail}; USAGE is enough to append",
        False,
    ),
}

#: One row for each finding: kind, stream, sequence, object, detail. Parameters: ``functions`` and ``bodies`` of this version.
_FIND = """
WITH RECURSIVE held AS (
    SELECT h.number, h.stream, h.sequence, 'streams_hold_' || h.number AS hold, 'streams_guard_' || h.number AS guard
      FROM streams_held h
), tree (number, t) AS (
    SELECT h.number, g.tgrelid FROM held h JOIN pg_trigger g ON g.tgname IN (h.hold, h.guard) AND g.tgparentid = 0
      JOIN pg_proc p ON p.oid = g.tgfoid
      JOIN pg_class home ON home.oid = 'streams_held'::regclass AND home.relnamespace = p.pronamespace
    UNION SELECT tree.number, i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.t
), drawn (number, t) AS (  -- tables that own the sequence, or draw from it by default
    SELECT h.number, d.refobjid FROM held h JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = h.sequence
       AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'a'
    UNION SELECT h.number, a.adrelid FROM held h
      JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = h.sequence
      JOIN pg_attrdef a ON d.classid = 'pg_attrdef'::regclass AND a.oid = d.objid
), wanted AS (
    SELECT h.number, h.stream, h.sequence, tree.t, w.name FROM tree JOIN held h ON h.number = tree.number
     CROSS JOIN LATERAL (VALUES (h.hold), (h.guard), ('streams_refuse'), ('streams_refuse_truncate')) AS w (name)
    UNION SELECT h.number, h.stream, h.sequence, tree.t, 'streams_guard_row_' || h.number  -- of partitions that are made later
      FROM tree JOIN held h ON h.number = tree.number
      JOIN tree AS root ON root.number = tree.number AND root.t = pg_partition_root(tree.t)
), site AS (
    SELECT relnamespace AS oid, quote_ident(n.nspname) AS name FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
     WHERE pg_class.oid = 'streams_held'::regclass
), given AS (
    SELECT f.name, f.body, CASE WHEN right(f.name, 1) = ')' THEN to_regprocedure(site.name || '.' || f.name) END AS oid
      FROM unnest(%(functions)s::text[], %(bodies)s::text[]) AS f (name, body), site
), installed AS (
    SELECT p.oid::regprocedure::text AS name, p.provolatile, p.proparallel, p.proisstrict, p.prosecdef, p.proconfig, p.prosrc,
           g.name AS given,
           replace(g.body, '{schema}', site.name) AS body
      FROM site JOIN pg_proc p ON p.pronamespace = site.oid JOIN given g ON p.oid = g.oid
    UNION ALL
    SELECT DISTINCT p.oid::regprocedure::text, p.provolatile, p.proparallel, p.proisstrict, p.prosecdef, p.proconfig, p.prosrc,
           g.name,
           replace(replace(replace(g.body, '{schema}', site.name), '{id}', quote_ident(a.part[4])),
                   '{writer}', quote_ident(a.part[5]))
      FROM site JOIN pg_proc p ON p.pronamespace = site.oid AND p.proname ~ '^streams_guard_[0-9a-f]{8}$'
      JOIN pg_trigger t ON t.tgfoid = p.oid JOIN given g ON g.name = 'streams_guard'
     CROSS JOIN LATERAL (SELECT string_to_array(encode(t.tgargs, 'escape'), '\\000') AS part) AS a
)
SELECT 'cache', h.stream, h.sequence::text, h.sequence::text, s.seqcache::text
  FROM held h JOIN pg_sequence s ON s.seqrelid = h.sequence WHERE s.seqcache <> 1
UNION ALL SELECT 'increment', h.stream, h.sequence::text, h.sequence::text, s.seqincrement::text
  FROM held h JOIN pg_sequence s ON s.seqrelid = h.sequence WHERE s.seqincrement < 1
UNION ALL SELECT 'cycle', h.stream, h.sequence::text, h.sequence::text, ''
  FROM held h JOIN pg_sequence s ON s.seqrelid = h.sequence WHERE s.seqcycle
UNION ALL SELECT 'unlogged', h.stream, h.sequence::text, h.sequence::text, '' FROM held h JOIN pg_class c ON c.oid = h.sequence
 WHERE c.relpersistence <> 'p'
UNION ALL SELECT DISTINCT 'gone', h.stream, h.sequence::text, tree.t::regclass::text, ''
  FROM held h JOIN tree ON tree.number = h.number WHERE NOT EXISTS (SELECT FROM pg_sequence s WHERE s.seqrelid = h.sequence)
UNION ALL SELECT CASE WHEN EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = w.t) THEN 'missing in a part' ELSE 'missing' END,
       w.stream, w.sequence::text, w.t::regclass::text, w.name FROM wanted w
 WHERE NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = w.t AND g.tgname = w.name)
UNION ALL SELECT 'not always', w.stream, w.sequence::text, w.t::regclass::text, w.name FROM wanted w
  JOIN pg_trigger g ON g.tgrelid = w.t AND g.tgname = w.name AND g.tgenabled <> 'A'
UNION ALL SELECT 'arguments', w.stream, w.sequence::text, w.t::regclass::text, w.name FROM wanted w
  JOIN pg_trigger g ON g.tgrelid = w.t AND g.tgname = w.name AND w.name ~ '^streams_(hold|guard)_[0-9]+$'
 CROSS JOIN LATERAL (SELECT string_to_array(encode(g.tgargs, 'escape'), '\\000') AS part) AS a
 CROSS JOIN LATERAL (SELECT w.name ~ '^streams_hold' AS holds) AS o
 WHERE a.part[1] <> w.number::text OR to_regclass(a.part[2]) IS DISTINCT FROM w.sequence
       AND NOT EXISTS (SELECT FROM pg_sequence s WHERE s.seqrelid = w.sequence) OR g.tgqual IS NOT NULL
    OR g.tgtype <> CASE WHEN o.holds THEN 6 ELSE 4 END  -- once for a statement, BEFORE or AFTER its INSERT
    OR NOT EXISTS (SELECT FROM pg_proc p JOIN site ON site.oid = p.pronamespace WHERE p.oid = g.tgfoid
                      AND p.proname ~ CASE WHEN o.holds THEN '^streams_hold$' ELSE '^streams_guard_[0-9a-f]{8}$' END)
UNION ALL SELECT DISTINCT CASE WHEN to_regclass(a.part[2]) IS NULL THEN 'renamed' ELSE 'made again' END, w.stream,
       w.sequence::text, format('%%I.%%I', n.nspname, c.relname), a.part[2]
  FROM wanted w JOIN pg_trigger g ON g.tgrelid = w.t AND g.tgname = w.name AND w.name ~ '^streams_(hold|guard)_[0-9]+$'
  JOIN pg_class c ON c.oid = w.sequence JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (SELECT string_to_array(encode(g.tgargs, 'escape'), '\\000') AS part) AS a
 WHERE a.part[1] = w.number::text AND to_regclass(a.part[2]) IS DISTINCT FROM w.sequence
UNION ALL SELECT CASE WHEN f.oid IS NULL THEN 'no default' ELSE 'default' END, w.stream, w.sequence::text, w.t::regclass::text,
       coalesce(CASE WHEN d.refobjid <> w.sequence THEN d.refobjid::regclass::text END, e.text, c.attname)
  FROM wanted w JOIN pg_trigger g ON g.tgrelid = w.t AND g.tgname = w.name AND w.name ~ '^streams_guard_[0-9]+$'
 CROSS JOIN LATERAL (SELECT string_to_array(encode(g.tgargs, 'escape'), '\\000') AS part) AS a
  JOIN pg_attribute c ON c.attrelid = w.t AND c.attname = a.part[4] AND c.attidentity = ''
  LEFT JOIN pg_attrdef f ON f.adrelid = c.attrelid AND f.adnum = c.attnum
  LEFT JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_class'::regclass
       AND d.refobjid IN (SELECT s.seqrelid FROM pg_sequence s)
  LEFT JOIN LATERAL (SELECT pg_get_expr(f.adbin, f.adrelid) AS text) AS e ON true
 WHERE NOT (a.part[3] = '-1' AND coalesce(a.part[6], '') = 'shared')  -- the other stream of the table has the default
   AND CASE WHEN f.oid IS NULL THEN NOT (SELECT t.relispartition FROM pg_class t WHERE t.oid = w.t)
            ELSE d.refobjid IS DISTINCT FROM w.sequence OR e.text !~ CASE WHEN a.part[3] = '-1'
                 THEN '^\\(- nextval\\(''.+''::regclass\\)\\)$' ELSE '^nextval\\(''.+''::regclass\\)$' END END
UNION ALL SELECT 'identity', w.stream, w.sequence::text, w.t::regclass::text, quote_ident(c.attname)
  FROM wanted w JOIN pg_trigger g ON g.tgrelid = w.t AND g.tgname = w.name AND w.name ~ '^streams_guard_[0-9]+$'
 CROSS JOIN LATERAL (SELECT string_to_array(encode(g.tgargs, 'escape'), '\\000') AS part) AS a
  JOIN pg_attribute c ON c.attrelid = w.t AND c.attname = a.part[4] AND c.attidentity <> ''
 WHERE NOT (a.part[3] = '-1' AND coalesce(a.part[6], '') = 'shared')
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
                      AND d.objid = w.sequence AND d.refobjid = coalesce(pg_partition_root(w.t), w.t) AND d.deptype = 'i')
UNION ALL SELECT 'table', h.stream, h.sequence::text, tree.t::regclass::text, ''
  FROM tree JOIN held h ON h.number = tree.number JOIN pg_class c ON c.oid = tree.t WHERE c.relkind NOT IN ('r', 'p')
UNION ALL SELECT 'unlogged table', h.stream, h.sequence::text, tree.t::regclass::text, ''
  FROM tree JOIN held h ON h.number = tree.number JOIN pg_class c ON c.oid = tree.t AND c.relkind = 'r' AND c.relpersistence = 'u'
UNION ALL SELECT 'policies', h.stream, h.sequence::text, tree.t::regclass::text, quote_ident(current_user)
  FROM tree JOIN held h ON h.number = tree.number WHERE row_security_active(tree.t)
UNION ALL SELECT 'subscribed', h.stream, h.sequence::text, tree.t::regclass::text, quote_ident(s.subname)
  FROM tree JOIN held h ON h.number = tree.number JOIN pg_subscription_rel r ON r.srrelid = tree.t
  JOIN pg_subscription s ON s.oid = r.srsubid AND s.subenabled
UNION ALL SELECT DISTINCT 'unheld', h.stream, h.sequence::text, d.t::regclass::text, ''
  FROM drawn d JOIN held h ON h.number = d.number
 WHERE NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = d.t AND g.tgname ~ '^streams_hold_[0-9]+$'
                    AND to_regclass(split_part(encode(g.tgargs, 'escape'), '\\000', 2)) = h.sequence)
   AND NOT EXISTS (SELECT FROM tree WHERE tree.t = d.t)
UNION ALL SELECT DISTINCT 'number', h.stream, h.sequence::text, d.t::regclass::text, split_part(g.tgname, '_', 3)
  FROM drawn d JOIN held h ON h.number = d.number JOIN pg_trigger g ON g.tgrelid = d.t AND g.tgname ~ '^streams_hold_[0-9]+$'
 WHERE to_regclass(split_part(encode(g.tgargs, 'escape'), '\\000', 2)) = h.sequence
   AND NOT EXISTS (SELECT FROM held k WHERE k.hold = g.tgname AND k.sequence = h.sequence)
UNION ALL SELECT 'function', '', '', i.name, 'another body' FROM installed i WHERE i.prosrc <> i.body
UNION ALL SELECT 'altered', '', '', i.name, o.detail FROM installed i CROSS JOIN LATERAL (VALUES
       ('not VOLATILE', i.provolatile <> 'v'), ('not PARALLEL UNSAFE', i.proparallel <> 'u'),
       ('STRICT', i.proisstrict <> (i.given = 'streams_given(regclass)')),
       ('another search_path', NOT coalesce(i.proconfig, '{}') @> ARRAY['search_path=pg_catalog, pg_temp']),
       ('not SECURITY DEFINER', i.prosecdef <> (i.given NOT IN ('streams_guard_row()', 'streams_refuse()')))) AS o (detail, wrong)
 WHERE o.wrong
UNION ALL SELECT 'function', '', '', g.name, 'missing' FROM given g
 WHERE g.name <> 'streams_guard' AND g.oid IS NULL
UNION ALL SELECT 'may not read', h.stream, h.sequence::text, h.sequence::text, p.proowner::regrole::text
  FROM site JOIN pg_proc p ON p.oid = to_regprocedure(site.name || '.streams_hold()') CROSS JOIN held h
  JOIN pg_sequence s ON s.seqrelid = h.sequence WHERE NOT has_sequence_privilege(p.proowner, s.seqrelid, 'USAGE, SELECT')
UNION ALL SELECT 'may not lock', '', '', '', p.proowner::regrole::text
  FROM site JOIN pg_proc p ON p.oid = to_regprocedure(site.name || '.streams_hold()')
 WHERE NOT has_function_privilege(p.proowner, 'pg_try_advisory_xact_lock_shared(bigint)', 'EXECUTE')
UNION ALL SELECT 'strangers', '', '', string_agg(p.oid::regprocedure::text, ', ' ORDER BY p.oid::regprocedure::text), ''
  FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname ~ '^pg_(try_)?advisory_(xact_)?lock(_shared)?$'
   AND has_function_privilege('public', p.oid, 'EXECUTE') HAVING count(*) > 0
UNION ALL SELECT 'setting', '', split_part(c.one, '=', 1), CASE
       WHEN r.setrole = 0 THEN 'DATABASE ' || quote_ident(current_database()) ELSE 'ROLE ' || r.setrole::regrole::text END, c.one
  FROM pg_db_role_setting r CROSS JOIN LATERAL unnest(r.setconfig) AS c (one)
 WHERE c.one ~ '^streams[.](maintenance|held)'
   AND r.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
UNION ALL SELECT 'server setting', '', 'streams.maintenance', '', 'streams.maintenance=on'
 WHERE current_setting('streams.maintenance', true) = 'on'
   AND NOT EXISTS (SELECT FROM pg_db_role_setting r CROSS JOIN LATERAL unnest(r.setconfig) AS c (one)
                    WHERE c.one = 'streams.maintenance=on' AND r.setdatabase IN (0, (SELECT oid FROM pg_database
                           WHERE datname = current_database())))
UNION ALL SELECT 'set back', h.stream, h.sequence::text, h.sequence::text,
       CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
  FROM held h JOIN pg_class c ON c.oid = h.sequence CROSS JOIN LATERAL aclexplode(c.relacl) AS a
 WHERE a.privilege_type = 'UPDATE' AND a.grantee <> c.relowner
ORDER BY 2, 1, 4, 5
"""
_SERVER = """
SELECT version(), coalesce((SELECT string_agg(extname, ' ') FROM pg_extension), ''),
       has_table_privilege(to_regclass('streams_held'), 'SELECT'),
       has_table_privilege(to_regclass('streams_statuschange'), 'SELECT')
"""
#: Sequences that a looker has moved forward (``streams.reading.position_store``). Each stays here until its record is deleted.
_SET_BACK = f"""
SELECT stream, to_char(at AT TIME ZONE 'UTC', '"at "YYYY-MM-DD HH24:MI:SS" UTC "') || sentence, severity > 2,
       'DELETE FROM streams_statuschange WHERE id = ' || c.id
  FROM streams_statuschange c JOIN streams_held USING (stream) WHERE word = '{SET_BACK}' ORDER BY c.id
"""
#: What the text of ``version()``, or the name of an extension, has in databases that are no single PostgreSQL server with the
#: locks and sequences of PostgreSQL.
_IMITATIONS = {
    "CockroachDB": "CockroachDB", "-YB-": "YugabyteDB", "Redshift": "Redshift", "citus": "Citus", "Greenplum": "Greenplum",
    "spock": "Spock", "bdr": "Postgres Distributed", "DSQL": "Aurora DSQL",
}  # fmt: skip


def imitation(version: str, extensions: str = "") -> str:
    """Returns the name of the product if this is not one PostgreSQL server, else empty text.

    ``version`` is what ``SELECT version()`` returns. ``extensions`` are the names of its extensions, with spaces between.
    """
    words = extensions.split()
    found = (name for mark, name in _IMITATIONS.items() if mark in version or mark in words)
    return next(found, "" if re.match(r"PostgreSQL \d", version) else version.split(" on ", maxsplit=1)[0][:60])


def weaknesses(cursor: Any) -> list[Weakness]:
    """Returns what weakens the holds of this database. Empty if nothing does, nothing is installed, or this role may not look."""
    cursor.execute(_SERVER)
    version, extensions, may_read, has_history = cursor.fetchone()
    found = []
    if product := imitation(version, extensions):
        problem = f"the database is {product}: its locks and sequences are not those of one PostgreSQL server"
        found.append(Weakness("", problem, "Keep streams in PostgreSQL"))
    if not may_read:
        return found
    given = bodies()
    cursor.execute(_FIND, {"functions": list(given), "bodies": list(given.values())})
    for kind, stream, sequence, name, detail in cursor.fetchall():
        if kind == "unlogged table" and (known := lookup.find(stream)) is not None and known.declaration.in_memory:
            continue
        problem, fix, loses = _TEXTS[kind]
        values = {"stream": stream, "sequence": sequence, "object": name, "detail": detail}
        table = name if fix is _INSTALL or kind == "not always" else ""
        found.append(Weakness(stream, problem.format(**values), fix.format(**values), loses, kind, table))
    if has_history:
        cursor.execute(_SET_BACK)
        for stream, problem, loses, statement in cursor.fetchall():
            found.append(Weakness(stream, problem, _APPEND_AGAIN, loses, SET_BACK, statement=statement))
    return found


def losing(cursor: Any) -> list[Weakness]:
    """Returns the weaknesses by which readers can miss facts, as far as no update of the program, under way, has brought them."""
    return [found for found in weaknesses(cursor) if found.loses and found.kind != "function"]


# --- trying it ----------------------------------------------------------------------------------------------------

#: A key of the number 0, which no stream has.
_KEY = 1
_LOCK = f"SELECT pg_try_advisory_xact_lock_shared({_KEY})"
_SEEN_LOCKS = f"""SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND classid = 0 AND objid = {_KEY}
AND mode = 'ShareLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid = %s"""


def probe(holder: Any, looker: Any) -> list[Weakness]:
    """Tries on two connections whether a lock is seen at once, and is gone after a rollback to a savepoint, and at the end.

    Both cursors must be outside of a transaction, in autocommit mode, and direct: not through a pooler.
    """
    steps = (
        ("is not seen by another session", f"BEGIN; SAVEPOINT a; {_LOCK}", 1),
        ("is still there after ROLLBACK TO SAVEPOINT", "ROLLBACK TO SAVEPOINT a", 0),
        ("is not seen after it is taken again", _LOCK, 1),
        ("is still there after the end of its transaction", "COMMIT", 0),
    )
    holder.execute("SELECT pg_backend_pid()")
    (pid,) = holder.fetchone()
    found = []
    with _rolled_back(holder):
        for problem, statement, wanted in steps:
            holder.execute(statement)
            looker.execute(_SEEN_LOCKS, [pid])
            if looker.fetchone()[0] != wanted:
                found.append(
                    Weakness(
                        "", f"a shared advisory lock {problem}", "Keep streams in PostgreSQL, without a pooler here"
                    )
                )
    return found


@contextmanager
def _rolled_back(cursor: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        cursor.execute("ROLLBACK")
        raise
