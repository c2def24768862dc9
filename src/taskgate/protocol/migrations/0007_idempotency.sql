-- Idempotency keys: what was submitted under a key, as long as its first task is there.
-- depends: 0003_indexes

CREATE TABLE IF NOT EXISTS idempotency_keys (
    tenant      text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL, -- of what was submitted: another body under the same key is a mistake
    task_id     text COLLATE "C" NOT NULL  -- the first of task_ids; deferred, for the key is written before its tasks
                REFERENCES tasks (task_id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    task_ids    text[] NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, key)
);
-- purge deletes by it
CREATE INDEX IF NOT EXISTS idx_idempotency_keys_task ON idempotency_keys (task_id);
