-- What stands beside the tasks: attempts, the claim ledger, settings, task types, workers.
-- depends: 0001_tasks

-- One row an attempt that has something to tell: a failure, a retry, a release, a checkpoint, an operation.
CREATE TABLE IF NOT EXISTS task_attempts (
    task_id     text COLLATE "C" NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
    token       bigint NOT NULL,
    attempt     integer,
    worker_id   text,
    started_at  timestamptz,
    finished_at timestamptz,
    outcome     text COLLATE "C" CHECK (outcome IN ('completed', 'failed', 'retried', 'released', 'lost', 'cancelled')),
    error       text,
    error_code  text,
    error_info  jsonb,
    checkpoint  jsonb,
    progress    jsonb,
    submit_intent_at timestamptz,
    operation   jsonb,
    account     jsonb,
    PRIMARY KEY (task_id, token)
);

-- The marks that claim goes by. Insert-only and read from its right end, so that reading them never
-- walks dead rows while some reader holds back vacuum.
CREATE TABLE IF NOT EXISTS claim_ledger (
    id        bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    max_token bigint NOT NULL,   -- tokens above it were given out since
    live      bigint[] NOT NULL, -- tokens that ran when this row was written
    ran       integer NOT NULL,  -- how many ran when the claim was over
    flows     bigint[] NOT NULL, -- those served of late, the last one first; the next two columns go by it
    marks     bigint[] NOT NULL, -- no arrival that is ready in the flow has a lower seq (late commits: next sweep)
    due_marks timestamptz[] NOT NULL, -- no delayed or retried task in the flow has an earlier run_at
    aged      bigint[] NOT NULL, -- flows whose first task has waited long
    ages      smallint[] NOT NULL, -- and by how many priorities that raises them
    buckets   jsonb NOT NULL,    -- of rate limits that are not full: see buckets.sql
    swept_at  timestamptz NOT NULL,
    sweep_cost interval NOT NULL
) WITH (toast_tuple_target = 8160);
-- Written and read at every claim: compressing it would cost more than the space.
ALTER TABLE claim_ledger ALTER COLUMN live SET STORAGE EXTERNAL, ALTER COLUMN flows SET STORAGE EXTERNAL,
    ALTER COLUMN marks SET STORAGE EXTERNAL, ALTER COLUMN due_marks SET STORAGE EXTERNAL;

-- The one truth about limits and defaults; `configured` is what migrate last saw in the environment.
CREATE TABLE IF NOT EXISTS settings (
    only_row       boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    max_concurrent integer NOT NULL DEFAULT 20 CHECK (max_concurrent >= 0),
    max_attempts   integer NOT NULL DEFAULT 3 CHECK (max_attempts > 0),
    max_throttle   interval NOT NULL DEFAULT interval '1 hour',
    result_ttl     interval NOT NULL DEFAULT interval '7 days',
    ageing         interval NOT NULL DEFAULT interval '5 minutes', -- a wait that raises a priority by one; 0: never
    configured     jsonb NOT NULL DEFAULT '{}',
    updated_at     timestamptz NOT NULL DEFAULT now()
);
INSERT INTO settings DEFAULT VALUES ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS task_types (
    name           text COLLATE "C" PRIMARY KEY,
    request_schema jsonb,
    description    text NOT NULL DEFAULT '',
    registered_at  timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now()
);
INSERT INTO task_types (name, description)
VALUES ('llm', 'A chat completion.'), ('veo', 'A video.') ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS workers (
    worker_id  text COLLATE "C" PRIMARY KEY,
    language   text NOT NULL,
    version    text NOT NULL,
    host       text NOT NULL,
    pid        integer NOT NULL,
    slots      integer NOT NULL,
    types      text[],
    busy       integer NOT NULL DEFAULT 0,
    draining   boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Which server run the leases belong to: after a start or a promotion nothing is recovered for one lease.
CREATE TABLE IF NOT EXISTS server_epoch (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    identity  text NOT NULL DEFAULT '',
    seen_at   timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO server_epoch DEFAULT VALUES ON CONFLICT DO NOTHING;

-- Flags as sequences: set outside transactions, read without dead rows. Each holds the time (ms since 1970)
-- until which somebody waits for a notification.
CREATE SEQUENCE IF NOT EXISTS waiting_workers_until CACHE 1 START 1;
CREATE SEQUENCE IF NOT EXISTS waiting_clients_until CACHE 1 START 1;
CREATE SEQUENCE IF NOT EXISTS waiting_room_until CACHE 1 START 1;
