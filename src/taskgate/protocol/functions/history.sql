-- A task's whole story, one row an attempt: what task_attempts tells, and the current or last attempt from the task
-- itself. `seconds` it ran; `usage` as the provider counted it (tokens, seconds of video), of the attempt that brought
-- the result; `answer` what the provider said: the result without its text, or what came instead; `model` the one of
-- the request, else the one that answered.
CREATE OR REPLACE VIEW task_history AS
SELECT h.*, extract(epoch FROM h.finished_at - h.started_at)::double precision AS seconds,
       CASE WHEN h.outcome = 'completed' AND jsonb_typeof(t.result) = 'object' THEN t.result -> 'usage' END AS usage,
       CASE WHEN h.outcome = 'completed' AND jsonb_typeof(t.result) = 'object' THEN t.result - 'text' - 'usage'
            ELSE h.error_info END AS answer,
       t.task_type, t.tenant, t.upstream,
       CASE WHEN t.model = '' AND h.outcome = 'completed' AND jsonb_typeof(t.result) = 'object'
            THEN coalesce(t.result ->> 'model', '') ELSE t.model END COLLATE "C" AS model
FROM (
    SELECT a.task_id, a.token, a.attempt, a.worker_id, a.started_at,
           coalesce(a.finished_at, CASE WHEN a.outcome IS NULL AND t.claim_token = a.token THEN t.finished_at END) AS finished_at,
           coalesce(a.outcome, CASE WHEN t.claim_token = a.token THEN CASE t.status WHEN 'pending' THEN NULL ELSE t.status END END) AS outcome,
           a.error, a.error_code, a.error_info, a.checkpoint, a.progress, a.submit_intent_at, a.operation, a.account
    FROM task_attempts a JOIN tasks t USING (task_id)
    UNION ALL
    SELECT t.task_id, t.claim_token, t.attempts, t.worker_id, t.started_at, t.finished_at, t.status,
           t.error, t.error_code, t.error_info, NULL, NULL, NULL, NULL, NULL
    FROM tasks t
    WHERE t.started_at IS NOT NULL AND t.status IN ('running', 'completed')
      AND NOT EXISTS (SELECT FROM task_attempts a WHERE a.task_id = t.task_id AND a.token = t.claim_token)
) AS h JOIN tasks t USING (task_id);
