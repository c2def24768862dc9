-- transactional: false
-- Indexes, built without blocking writers so that an origin table can be adopted while in use.
-- depends: 0002_state

-- This waits for older transactions, and stops nobody meanwhile.
SET lock_timeout = '10min';

CREATE INDEX CONCURRENTLY IF NOT EXISTS idx_tasks_pending_created_at ON tasks (created_at)
    WHERE status = 'pending' AND task_type IS NOT NULL AND request IS NOT NULL;

CREATE INDEX CONCURRENTLY IF NOT EXISTS idx_tasks_running_locked_until ON tasks (locked_until)
    WHERE status = 'running' AND request IS NOT NULL;

-- Ours say "has a request" as num_nulls(…) = 0: a query that says the same can be served by them alone, and one
-- in the origin's words by the origin's two alone. Otherwise stale statistics, which every queue has when it
-- fills or drains, let the planner walk the wrong one from end to end.

-- First arrivals, in the order claim takes them.
CREATE INDEX CONCURRENTLY IF NOT EXISTS idx_tasks_ready ON tasks (flow, seq)
    WHERE status = 'pending' AND run_at IS NULL AND num_nulls(task_type, request) = 0;

-- Delayed, retried, released and recovered tasks.
CREATE INDEX CONCURRENTLY IF NOT EXISTS idx_tasks_due ON tasks (flow, run_at, seq)
    WHERE status = 'pending' AND run_at IS NOT NULL AND num_nulls(task_type, request) = 0;

CREATE INDEX CONCURRENTLY IF NOT EXISTS idx_tasks_running_token ON tasks (claim_token)
    WHERE status = 'running' AND num_nulls(request) = 0;

CREATE INDEX CONCURRENTLY IF NOT EXISTS idx_tasks_start_before ON tasks (start_before)
    WHERE status = 'pending' AND start_before IS NOT NULL;

CREATE INDEX CONCURRENTLY IF NOT EXISTS idx_tasks_expires_at ON tasks (expires_at) WHERE expires_at IS NOT NULL;

-- Here and in the key each task is entered three times until it is final, close together. Left to themselves the pages
-- end half empty, one split after the other; made so from the start, they need no split.
CREATE INDEX CONCURRENTLY IF NOT EXISTS idx_tasks_tenant_seq ON tasks (tenant, seq) WITH (fillfactor = 50);

DO $$
DECLARE key regclass := (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = 'tasks'::regclass AND i.indisprimary);
BEGIN
    EXECUTE format('ALTER INDEX %s SET (fillfactor = 50)', key);
END $$;
