-- Media of tasks: which task has what, and the bytes. A row of `tasks` holds only a reference.
-- depends: 0003_indexes

CREATE SEQUENCE IF NOT EXISTS media_seq CACHE 1;

-- One row each content and store. The address is the hash: by this table, so that files and objects keep the random
-- key they were begun under, and nothing is renamed or overwritten.
CREATE TABLE IF NOT EXISTS media_blobs (
    id         bigint PRIMARY KEY DEFAULT nextval('media_seq'),
    store      text COLLATE "C" NOT NULL,         -- `postgres`, or where the object is
    object     text COLLATE "C",                  -- its key there; NULL: in media_chunks
    sha256     bytea CHECK (octet_length(sha256) = 32), -- NULL while it comes in, and once it is given up
    bytes      bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    idle_since timestamptz DEFAULT clock_timestamp(), -- no task may refer to it since then; NULL: some task does
    CHECK ((store = 'postgres') = (object IS NULL))
);
CREATE UNIQUE INDEX IF NOT EXISTS idx_media_blobs_sha256 ON media_blobs (store, sha256) WHERE sha256 IS NOT NULL;
CREATE INDEX IF NOT EXISTS idx_media_blobs_idle ON media_blobs (store, idle_since) WHERE idle_since IS NOT NULL;

-- 256 KiB each but the last, so that a range finds its chunk by arithmetic.
CREATE TABLE IF NOT EXISTS media_chunks (
    blob bigint NOT NULL REFERENCES media_blobs (id) ON DELETE CASCADE,
    n    integer NOT NULL CHECK (n >= 0),
    data bytea NOT NULL CHECK (octet_length(data) BETWEEN 1 AND 262144),
    PRIMARY KEY (blob, n)
);
-- Videos and images are compressed already.
ALTER TABLE media_chunks ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE IF NOT EXISTS task_media (
    task_id    text COLLATE "C" NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
    name       text COLLATE "C" NOT NULL CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$'),
    blob       bigint NOT NULL REFERENCES media_blobs (id),
    mime       text NOT NULL CHECK (mime ~ '^[a-z0-9][a-z0-9.+-]*/[a-z0-9][a-z0-9.+-]*$' AND length(mime) <= 100),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (task_id, name)
);
CREATE INDEX IF NOT EXISTS idx_task_media_blob ON task_media (blob);
