-- The tasks table: the origin's eleven columns, then ours. Adopts an origin table that is in use.
-- Runs with search_path = <schema of the functions>, <schema of the table>; see migrate.py.
-- depends:

CREATE SEQUENCE IF NOT EXISTS task_seq CACHE 1;
CREATE SEQUENCE IF NOT EXISTS claim_token_seq CACHE 1;

DO $$
BEGIN
    EXECUTE format($ddl$
        CREATE TABLE IF NOT EXISTS %I.tasks (
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
        )$ddl$, (current_schemas(false))[2]);
END $$;

-- Constant defaults: no rewrite, so that adopting a large table holds its lock for milliseconds only.
ALTER TABLE tasks
    ADD COLUMN IF NOT EXISTS seq                 bigint,
    ADD COLUMN IF NOT EXISTS claim_token         bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS settled_token       bigint,
    ADD COLUMN IF NOT EXISTS priority            smallint NOT NULL DEFAULT 4 CHECK (priority BETWEEN 0 AND 9),
    ADD COLUMN IF NOT EXISTS run_at              timestamptz,
    ADD COLUMN IF NOT EXISTS start_before        timestamptz,
    ADD COLUMN IF NOT EXISTS timeout_seconds     double precision,
    ADD COLUMN IF NOT EXISTS max_attempts        integer,
    ADD COLUMN IF NOT EXISTS releases            integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS throttled           interval NOT NULL DEFAULT interval '0',
    ADD COLUMN IF NOT EXISTS worker_id           text,
    ADD COLUMN IF NOT EXISTS started_at          timestamptz,
    ADD COLUMN IF NOT EXISTS finished_at         timestamptz,
    ADD COLUMN IF NOT EXISTS cancel_requested_at timestamptz,
    ADD COLUMN IF NOT EXISTS tenant              text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS request_raw         json,
    ADD COLUMN IF NOT EXISTS metadata            jsonb,
    ADD COLUMN IF NOT EXISTS error_code          text,
    ADD COLUMN IF NOT EXISTS error_info          jsonb,
    ADD COLUMN IF NOT EXISTS traceparent         text,
    ADD COLUMN IF NOT EXISTS model               text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS upstream            text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS flow                bigint,
    DROP CONSTRAINT IF EXISTS tasks_status_known,
    ADD CONSTRAINT tasks_status_known CHECK (status IN ('pending', 'running', 'completed', 'failed')) NOT VALID;

ALTER TABLE tasks ALTER COLUMN seq SET DEFAULT nextval('task_seq');

-- No update of this table is ever HOT (status stands in index predicates), so vacuum has to keep up.
ALTER TABLE tasks SET (
    autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05, vacuum_truncate = off
);

-- Whoever may insert a task may draw its place in line.
GRANT USAGE ON SEQUENCE task_seq TO PUBLIC;
