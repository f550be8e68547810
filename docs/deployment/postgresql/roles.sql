-- Three roles and a database:   psql -v ON_ERROR_STOP=1 -f roles.sql     as a superuser, once, before the first migration or before a
-- dump is put back. Roles that are there stay as they are; set the passwords of new ones:   \password replsite_owner   and so on.

-- Owns the tables; used by migrations only.
SELECT 'CREATE ROLE replsite_owner LOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'replsite_owner') \gexec
-- Every process of the site: reads and writes rows, makes staging tables of its own, changes no table of the owner's.
SELECT 'CREATE ROLE replsite LOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'replsite') \gexec
-- Other services: read.
SELECT 'CREATE ROLE replsite_reader LOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'replsite_reader') \gexec

CREATE DATABASE replsite OWNER replsite_owner ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;
\connect replsite

REVOKE ALL ON DATABASE replsite FROM PUBLIC;
GRANT CONNECT, TEMPORARY ON DATABASE replsite TO replsite;
GRANT CONNECT ON DATABASE replsite TO replsite_reader;

ALTER SCHEMA public OWNER TO replsite_owner;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO replsite;
GRANT USAGE ON SCHEMA public TO replsite_reader;

-- Every role may make large objects and write messages into the WAL otherwise, and fill the disk with them. The site does neither.
SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', oid::regprocedure) FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace
    AND proname IN ('lo_create', 'lo_creat', 'lo_from_bytea', 'pg_logical_emit_message') \gexec

-- Every role may take advisory locks otherwise, and delay the readers of streams with them.
SELECT format('REVOKE EXECUTE ON FUNCTION %1$s FROM PUBLIC; GRANT EXECUTE ON FUNCTION %1$s TO replsite_owner, replsite',
    oid::regprocedure) FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace AND proname ~ '^pg_(try_)?advisory_(xact_)?lock(_shared)?$' \gexec

-- Of every table and sequence that a migration makes, now or later.
ALTER DEFAULT PRIVILEGES FOR ROLE replsite_owner IN SCHEMA public
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO replsite;
ALTER DEFAULT PRIVILEGES FOR ROLE replsite_owner IN SCHEMA public
    GRANT SELECT, USAGE ON SEQUENCES TO replsite;
-- Staging tables are the site's; pg_dump, as the owner, reads them as well.
ALTER DEFAULT PRIVILEGES FOR ROLE replsite IN SCHEMA public GRANT SELECT ON TABLES TO replsite_owner;
ALTER DEFAULT PRIVILEGES FOR ROLE replsite IN SCHEMA public GRANT SELECT ON SEQUENCES TO replsite_owner;
