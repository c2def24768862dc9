-- Says, just before a paid call is sent, that it will be: the trace that remains when the worker dies in the middle.
-- p_account: who will be charged, so that only a worker with the same account follows it up.
-- p_retry: what to do when nobody learns what became of the call: send it again (true), or end the task with
-- `submit_ambiguous` (false). Answers `done` or `stale`.
CREATE OR REPLACE FUNCTION intend(p_id text, p_token bigint, p_account text, p_retry boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE t record;
BEGIN
    SELECT * INTO t FROM begun(p_id, p_token);
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    INSERT INTO task_attempts AS a (task_id, token, attempt, worker_id, started_at, submit_intent_at, account, ambiguous_retry)
    VALUES (p_id, p_token, t.attempts, t.worker_id, t.started_at, clock_timestamp(), p_account::jsonb, p_retry)
    ON CONFLICT (task_id, token) DO UPDATE
    SET submit_intent_at = excluded.submit_intent_at, account = excluded.account, operation = NULL,
        ambiguous_retry = excluded.ambiguous_retry;
    RETURN 'done';
END $$;
