-- The tasks table: the origin's eleven columns, then ours. Adopts an origin table that is in use.
-- Runs with search_path = <schema of the functions>, <schema of the table>; see migrate.py.
-- depends:

CREATE SEQUENCE IF NOT EXISTS task_seq CACHE 1;
CREATE SEQUENCE IF NOT EXISTS claim_token_seq CACHE 1;

DO $$
DECLARE
    place text := (current_schemas(false))[2];
    wrong text;
BEGIN
    IF to_regclass(format('%I.tasks', place)) IS NULL THEN
        EXECUTE format($ddl$
            CREATE TABLE %I.tasks (
                task_id      text COLLATE "C" PRIMARY KEY,
                status       text COLLATE "C" NOT NULL,
                task_type    text COLLATE "C",
                request      jsonb,
                result       jsonb,
                error        text,
                attempts     integer NOT NULL DEFAULT 0,
                locked_until timestamptz,
                created_at   timestamptz NOT NULL DEFAULT now(),
                updated_at   timestamptz NOT NULL DEFAULT now(),
                expires_at   timestamptz
            )$ddl$, place);
    ELSE
        SELECT string_agg(format('%s %s', want.name, want.type), ', ') INTO wrong
        FROM (VALUES ('task_id', 'text'), ('status', 'text'), ('task_type', 'text'), ('request', 'jsonb'),
                     ('result', 'jsonb'), ('error', 'text'), ('attempts', 'integer'),
                     ('locked_until', 'timestamp with time zone'), ('created_at', 'timestamp with time zone'),
                     ('updated_at', 'timestamp with time zone'), ('expires_at', 'timestamp with time zone')
             ) AS want (name, type)
        LEFT JOIN information_schema.columns have
            ON have.table_schema = place AND have.table_name = 'tasks'
           AND have.column_name = want.name AND have.data_type = want.type
        WHERE have.column_name IS NULL;
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION 'the table %.tasks is not a task table: it lacks %', place, wrong
                USING HINT = 'Set TASKGATE_SCHEMA to another schema, or rename that table.';
        END IF;
        IF NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = to_regclass(format('%I.tasks', place)) AND i.indisprimary
                AND i.indnkeyatts = 1 AND (SELECT attname FROM pg_attribute WHERE attrelid = i.indrelid AND attnum = i.indkey[0]) = 'task_id') THEN
            RAISE EXCEPTION 'the table %.tasks is not a task table: task_id is not its primary key', place
                USING HINT = 'Set TASKGATE_SCHEMA to another schema, or rename that table.';
        END IF;
    END IF;
END $$;

DO $$
DECLARE strange text;
BEGIN
    SELECT string_agg(DISTINCT status, ', ') INTO strange FROM tasks
    WHERE status NOT IN ('pending', 'running', 'completed', 'failed');
    IF strange IS NOT NULL THEN
        RAISE EXCEPTION 'the table tasks holds rows of unknown status: %', left(strange, 200)
            USING HINT = 'taskgate knows pending, running, completed and failed; change those rows first.';
    END IF;
END $$;

-- Constant defaults: no rewrite, so that adopting a large table holds its lock for milliseconds only.
ALTER TABLE tasks
    ADD COLUMN seq                 bigint,
    ADD COLUMN claim_token         bigint NOT NULL DEFAULT 0,
    ADD COLUMN settled_token       bigint,
    ADD COLUMN priority            smallint NOT NULL DEFAULT 4 CHECK (priority BETWEEN 0 AND 9),
    ADD COLUMN run_at              timestamptz,
    ADD COLUMN start_before        timestamptz,
    ADD COLUMN timeout_seconds     double precision,
    ADD COLUMN max_attempts        integer,
    ADD COLUMN releases            integer NOT NULL DEFAULT 0,
    ADD COLUMN throttled           interval NOT NULL DEFAULT interval '0',
    ADD COLUMN worker_id           text,
    ADD COLUMN started_at          timestamptz,
    ADD COLUMN finished_at         timestamptz,
    ADD COLUMN cancel_requested_at timestamptz,
    ADD COLUMN tenant              text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN request_raw         json,
    ADD COLUMN metadata            jsonb,
    ADD COLUMN error_code          text,
    ADD COLUMN error_info          jsonb,
    ADD COLUMN traceparent         text,
    ADD CONSTRAINT tasks_status_known CHECK (status IN ('pending', 'running', 'completed', 'failed')) NOT VALID;

ALTER TABLE tasks ALTER COLUMN seq SET DEFAULT nextval('task_seq');

-- No update of this table is ever HOT (status stands in index predicates), so vacuum has to keep up.
ALTER TABLE tasks SET (
    autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05, vacuum_truncate = off
);

-- Whoever may insert a task may draw its place in line.
GRANT USAGE ON SEQUENCE task_seq TO PUBLIC;
