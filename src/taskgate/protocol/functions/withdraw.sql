-- Takes an intent back: the call surely did not reach the provider, or was refused there, so nothing was paid.
-- Answers `done` or `stale`.
CREATE OR REPLACE FUNCTION withdraw(p_id text, p_token bigint) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM FROM tasks
    WHERE task_id = p_id AND claim_token = p_token AND status || '' = 'running' FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    UPDATE task_attempts a SET submit_intent_at = NULL, account = NULL, ambiguous_retry = false
    WHERE a.task_id = p_id AND a.token = p_token AND a.operation IS NULL;
    RETURN 'done';
END $$;
