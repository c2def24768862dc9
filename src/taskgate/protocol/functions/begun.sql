-- Locks the row of an attempt that has something to keep, which shows that it has begun: one of a task that was claimed
-- ahead (see claim) is counted from now on. Answers what task_attempts tells of it; no row: it is not this token's any more.
CREATE OR REPLACE FUNCTION begun(p_id text, p_token bigint)
RETURNS TABLE (attempts integer, worker_id text, started_at timestamptz)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE t record;
BEGIN
    SELECT o.attempts, o.worker_id, o.started_at INTO t FROM tasks o
    WHERE o.task_id = p_id AND o.claim_token = p_token AND o.status || '' = 'running' FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF t.attempts = 0 THEN
        UPDATE tasks o SET attempts = 1 WHERE o.task_id = p_id;
    END IF;
    RETURN QUERY SELECT greatest(1, t.attempts), t.worker_id, t.started_at;
END $$;
