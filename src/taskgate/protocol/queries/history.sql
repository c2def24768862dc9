-- Every attempt at one task ($1), first to last.
SELECT token, attempt, worker_id, readable(started_at) AS started_at, readable(finished_at) AS finished_at,
       outcome, error, error_code, error_info::text AS error_info,
       checkpoint::text AS checkpoint, progress::text AS progress,
       readable(submit_intent_at) AS submit_intent_at, operation::text AS operation, account::text AS account,
       seconds, usage::text AS usage, answer::text AS answer, upstream, model
FROM task_history WHERE task_id = $1::text ORDER BY token
