-- Tasks by id ($1 text[]), of one tenant ($2, NULL: any). JSON columns as text, to be passed on unparsed.
-- $3 with the request · $4 leave out results that take more than so many bytes on disk (NULL: none), so that a
-- look-up of many does not hold many large ones at once.
SELECT t.task_id, t.status, t.task_type,
       CASE WHEN $4::integer IS NULL OR pg_column_size(t.result) <= $4 THEN t.result::text END AS result,
       $4 IS NOT NULL AND coalesce(pg_column_size(t.result) > $4, false) AS result_left_out,
       t.error, t.error_code, t.error_info::text AS error_info,
       t.attempts, coalesce(t.max_attempts, s.max_attempts) AS max_attempts, t.releases, t.priority, t.tenant,
       readable(t.created_at) AS created_at, readable(t.updated_at) AS updated_at,
       readable(t.run_at) AS run_at, readable(t.started_at) AS started_at,
       readable(t.finished_at) AS finished_at, readable(t.expires_at) AS expires_at, t.worker_id,
       readable(t.cancel_requested_at) AS cancel_requested_at, t.metadata::text AS metadata,
       CASE WHEN t.status = 'running' THEN (
           SELECT a.progress::text FROM task_attempts a WHERE a.task_id = t.task_id AND a.token = t.claim_token
       ) END AS progress,
       CASE WHEN $3::boolean THEN coalesce(t.request_raw::text, t.request::text) END AS request
FROM tasks t CROSS JOIN settings s
WHERE t.task_id = ANY ($1::text[]) AND ($2::text IS NULL OR t.tenant = $2::text)
