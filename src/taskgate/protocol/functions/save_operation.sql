-- Saves the provider's handle of a paid call that was accepted, on the attempt that sent it. Answers `done`, `stale` or
-- `cancelled`: stale, and the task ended so meanwhile: nobody but the caller will cancel the operation at the provider.
-- A handle that comes too late is noted with its attempt all the same (the worker must stop, but the call was paid):
-- a retry of the task then finds it, instead of paying for a second one.
CREATE OR REPLACE FUNCTION save_operation(p_id text, p_token bigint, p_operation text) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    t record;
    live boolean;
BEGIN
    SELECT * INTO t FROM begun(p_id, p_token);
    live := FOUND;
    UPDATE task_attempts a SET operation = p_operation::jsonb
    WHERE a.task_id = p_id AND a.token = p_token AND a.submit_intent_at IS NOT NULL;
    IF NOT FOUND AND live THEN  -- an attempt that resumed, and learned how the operation of an earlier one ended
        INSERT INTO task_attempts (task_id, token, attempt, worker_id, started_at, submit_intent_at, account, operation)
        SELECT p_id, p_token, t.attempts, t.worker_id, t.started_at, a.submit_intent_at, a.account, p_operation::jsonb
        FROM task_attempts a WHERE a.task_id = p_id AND a.submit_intent_at IS NOT NULL ORDER BY a.token DESC LIMIT 1
        ON CONFLICT (task_id, token) DO UPDATE
        SET submit_intent_at = excluded.submit_intent_at, account = excluded.account, operation = excluded.operation;
    END IF;
    RETURN CASE WHEN live THEN 'done'
                WHEN EXISTS (SELECT FROM tasks WHERE task_id = p_id AND status || '' = 'failed' AND error_code = 'cancelled') THEN 'cancelled'
                ELSE 'stale' END;
END $$;
