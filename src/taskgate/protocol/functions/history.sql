-- One row an attempt: what task_attempts tells, and the current or last attempt from the task itself.
CREATE OR REPLACE VIEW task_history AS
SELECT a.task_id, a.token, a.attempt, a.worker_id, a.started_at, a.finished_at,
       coalesce(a.outcome, CASE WHEN t.claim_token = a.token THEN CASE t.status WHEN 'pending' THEN NULL ELSE t.status END END) AS outcome,
       a.error, a.error_code, a.error_info, a.checkpoint, a.progress, a.submit_intent_at, a.operation, a.account
FROM task_attempts a JOIN tasks t USING (task_id)
UNION ALL
SELECT t.task_id, t.claim_token, t.attempts, t.worker_id, t.started_at, t.finished_at, t.status,
       t.error, t.error_code, t.error_info, NULL, NULL, NULL, NULL, NULL
FROM tasks t
WHERE t.started_at IS NOT NULL AND t.status IN ('running', 'completed')
  AND NOT EXISTS (SELECT FROM task_attempts a WHERE a.task_id = t.task_id AND a.token = t.claim_token);
