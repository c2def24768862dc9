-- The origin's worker: one task at a time, its own statements, on its own table.
BEGIN;
SELECT pg_advisory_xact_lock(8386110886273709157);
UPDATE tasks
SET status = CASE WHEN attempts >= 3 THEN 'failed' ELSE 'pending' END,
    error = CASE WHEN attempts >= 3 THEN 'worker timeout' ELSE error END,
    locked_until = NULL,
    updated_at = now(),
    expires_at = CASE WHEN attempts >= 3 THEN now() + (3600 * interval '1 second') ELSE NULL END
WHERE status = 'running'
  AND request IS NOT NULL
  AND locked_until IS NOT NULL
  AND locked_until < now();
SELECT count(*) FROM tasks WHERE status = 'running' AND request IS NOT NULL;
WITH next_task AS (
    SELECT task_id
    FROM tasks
    WHERE status = 'pending'
      AND task_type IS NOT NULL
      AND request IS NOT NULL
    ORDER BY created_at
    FOR UPDATE SKIP LOCKED
    LIMIT 1
)
UPDATE tasks AS t
SET status = 'running',
    attempts = t.attempts + 1,
    locked_until = now() + (60 * interval '1 second'),
    updated_at = now(),
    expires_at = NULL
FROM next_task
WHERE t.task_id = next_task.task_id
RETURNING t.task_id, t.task_type, t.request::text AS request \gset
COMMIT;
UPDATE tasks
SET status = 'completed', result = 'null'::jsonb, error = NULL, locked_until = NULL, updated_at = now(),
    expires_at = now() + (3600 * interval '1 second')
WHERE task_id = :task_id;
