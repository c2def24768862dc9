-- Every attempt at one task ($1), first to last.
SELECT token, attempt, worker_id, readable(started_at) AS started_at, readable(finished_at) AS finished_at,
       outcome, error, error_code, error_info::text AS error_info,
       checkpoint::text AS checkpoint, progress::text AS progress
FROM task_history WHERE task_id = $1::text ORDER BY token
