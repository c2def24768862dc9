-- Named upstreams: where calls go, with which key (its place, never the key itself), for which models.
-- depends: 0003_indexes

CREATE TABLE IF NOT EXISTS upstreams (
    name                text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9_.-]{0,99}$'),
    api                 text NOT NULL CHECK (api IN ('openai', 'gemini', 'vertex', 'interactions')),
    base_url            text NOT NULL DEFAULT '',
    key_env             text NOT NULL DEFAULT '', -- the environment variable of the worker that holds the key
    key_file            text NOT NULL DEFAULT '', -- or the file
    models              text[] NOT NULL DEFAULT '{}', -- exact names, or beginnings with a trailing *
    model               text NOT NULL DEFAULT '', -- for tasks that name none
    project             text NOT NULL DEFAULT '',
    location            text NOT NULL DEFAULT '',
    credentials_file    text NOT NULL DEFAULT '',
    max_concurrent      integer CHECK (max_concurrent >= 0),
    requests_per_minute double precision CHECK (requests_per_minute > 0),
    tokens_per_minute   double precision CHECK (tokens_per_minute > 0),
    enabled             boolean NOT NULL DEFAULT true, -- false: no task is routed to it any more; those that name it go on
    updated_at          timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What the worker that wrote the intent wants done if nobody learns what became of it: try again, or end the task.
ALTER TABLE task_attempts ADD COLUMN IF NOT EXISTS ambiguous_retry boolean NOT NULL DEFAULT false;
