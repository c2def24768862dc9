-- Flows: tasks that stand in one line, being of one type, priority, tenant, upstream and model. And limits of groups.
-- depends: 0003_indexes

-- The directory of flows that may have pending tasks. Without a unique key, so that nobody ever waits for somebody
-- else's uncommitted row; whoever reads it takes doubles as one. See announce.sql and tidy.sql.
CREATE TABLE IF NOT EXISTS flows (
    id        bigint NOT NULL, -- flow_id() of the five
    task_type text COLLATE "C" NOT NULL,
    priority  smallint NOT NULL,
    tenant    text COLLATE "C" NOT NULL,
    upstream  text COLLATE "C" NOT NULL,
    model     text COLLATE "C" NOT NULL,
    since     timestamptz NOT NULL
) WITH (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000);
CREATE INDEX IF NOT EXISTS flows_id ON flows (id);
CREATE INDEX IF NOT EXISTS flows_place ON flows (task_type, priority, id);

-- Limits of groups: of one type, model, upstream or tenant, or (name *) of each one that has no limit of its own.
CREATE TABLE IF NOT EXISTS limits (
    scope          text COLLATE "C" NOT NULL CHECK (scope IN ('type', 'model', 'upstream', 'tenant')),
    name           text COLLATE "C" NOT NULL CHECK (name <> ''),
    max_concurrent integer CHECK (max_concurrent >= 0),
    requests_per_minute double precision CHECK (requests_per_minute > 0),
    requests_burst double precision CHECK (requests_burst >= 1), -- NULL: what a second brings, at least 1
    tokens_per_minute double precision CHECK (tokens_per_minute > 0),
    tokens_burst   double precision CHECK (tokens_burst >= 1),   -- NULL: what a minute brings
    tokens_default integer CHECK (tokens_default >= 0),          -- of an answer, where the request says no max_tokens; NULL: 0
    updated_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, name)
);

-- Tokens (of a provider's rate limit) that running tasks were given: by claim token, an element a group.
-- Written and deleted by claim alone.
CREATE TABLE IF NOT EXISTS token_reservations (
    token   bigint PRIMARY KEY,
    task_id text COLLATE "C" NOT NULL,
    groups  text[] NOT NULL, -- such as model/gpt-5
    amounts double precision[] NOT NULL
);

-- Providers that said "not before then": the greatest end of a group counts. Written by release, without a key, so
-- that nobody waits; what is over goes with a sweep.
CREATE TABLE IF NOT EXISTS cooldowns (
    scope  text COLLATE "C" NOT NULL CHECK (scope IN ('type', 'upstream')),
    name   text COLLATE "C" NOT NULL,
    until  timestamptz NOT NULL,
    reason text,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS cooldowns_until ON cooldowns (until);
