-- Saves what a running attempt wants kept: a checkpoint for later attempts, progress for those who watch.
-- NULL leaves a value as it is. Answers `done` or `stale`.
CREATE OR REPLACE FUNCTION checkpoint(p_id text, p_token bigint, p_checkpoint text DEFAULT NULL, p_progress text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE t record;
BEGIN
    SELECT * INTO t FROM begun(p_id, p_token);
    IF NOT FOUND THEN
        RETURN 'stale';
    END IF;
    INSERT INTO task_attempts AS a (task_id, token, attempt, worker_id, started_at, checkpoint, progress)
    VALUES (p_id, p_token, t.attempts, t.worker_id, t.started_at, p_checkpoint::jsonb, p_progress::jsonb)
    ON CONFLICT (task_id, token) DO UPDATE
    SET checkpoint = coalesce(excluded.checkpoint, a.checkpoint), progress = coalesce(excluded.progress, a.progress);
    RETURN 'done';
END $$;
