-- Cancels a task. p_tenant: only if it is that tenant's; NULL for any. Answers `cancelled` (it was pending and
-- is failed now), `cancelling` (its worker is told to stop; it ends failed), `already`, `finished`, `not_found`.
CREATE OR REPLACE FUNCTION cancel(p_id text, p_tenant text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    t record;
    n timestamptz;
BEGIN
    SELECT status, error, cancel_requested_at INTO t FROM tasks
    WHERE task_id = p_id AND (p_tenant IS NULL OR tenant = p_tenant) FOR UPDATE;
    n := clock_timestamp();
    IF NOT FOUND THEN
        RETURN 'not_found';
    ELSIF t.status = 'pending' THEN
        UPDATE tasks SET status = 'failed', error = 'cancelled', error_code = 'cancelled', cancel_requested_at = n,
            claim_token = nextval('claim_token_seq'), updated_at = n, finished_at = n,
            expires_at = n + (SELECT s.result_ttl FROM settings s)
        WHERE task_id = p_id;
        PERFORM announce_done(ARRAY[p_id]);
        RETURN 'cancelled';
    ELSIF t.status = 'running' THEN
        IF t.cancel_requested_at IS NULL THEN
            UPDATE tasks SET cancel_requested_at = n, updated_at = updated_at WHERE task_id = p_id;
        END IF;
        IF octet_length(p_id) < 7000 THEN
            PERFORM pg_notify(current_schema() || '_cancel', p_id);
        END IF;
        RETURN 'cancelling';
    ELSIF t.error = 'cancelled' THEN
        RETURN 'already';
    END IF;
    RETURN 'finished';
END $$;
