-- Cancels a task. p_tenant: only if it is that tenant's; NULL for any. Answers `cancelled` (it was pending and
-- is failed now), `cancelling` (its worker is told to stop; it ends failed), `waiting` (its operation at the provider is
-- open, and nobody follows it: the next worker cancels it there, then it ends failed), `already`, `finished`, `not_found`.
CREATE OR REPLACE FUNCTION cancel(p_id text, p_tenant text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    -- A task that waits for a worker in this way ends so much later anyway, by its start_before (see expire): to cancel
    -- an operation is worth something while it goes on.
    patience constant interval := '10 minutes';
    t record;
    n timestamptz;
BEGIN
    SELECT status, error, cancel_requested_at, start_before INTO t FROM tasks
    WHERE task_id = p_id AND (p_tenant IS NULL OR tenant = p_tenant) FOR UPDATE;
    n := clock_timestamp();
    IF NOT FOUND THEN
        RETURN 'not_found';
    ELSIF t.status = 'pending' AND is_followed(p_id, n) AND (t.cancel_requested_at IS NULL OR t.start_before > n) THEN
        IF t.cancel_requested_at IS NULL THEN
            UPDATE tasks SET cancel_requested_at = n, start_before = n + patience, run_at = least(run_at, n), updated_at = n
            WHERE task_id = p_id;
            PERFORM pass_on_cancel(ARRAY[p_id]);
            PERFORM announce_tasks(ARRAY[p_id]);
        END IF;
        RETURN 'waiting';
    ELSIF t.status = 'pending' THEN
        UPDATE tasks SET status = 'failed', error = 'cancelled', error_code = 'cancelled', cancel_requested_at = n,
            claim_token = nextval('claim_token_seq'), updated_at = n, finished_at = n,
            expires_at = n + (SELECT s.result_ttl FROM settings s)
        WHERE task_id = p_id;
        PERFORM announce_done(ARRAY[p_id]);
        RETURN 'cancelled';
    ELSIF t.status = 'running' THEN
        IF t.cancel_requested_at IS NULL THEN
            UPDATE tasks SET cancel_requested_at = n, start_before = n + patience, updated_at = updated_at WHERE task_id = p_id;
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

-- Tells whoever claims these tasks next, by the handle that it gets, to cancel their operation and not to follow it.
CREATE OR REPLACE FUNCTION pass_on_cancel(p_ids text[]) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    UPDATE task_attempts a SET operation = a.operation || '{"cancel_requested": true}'
    WHERE a.task_id = ANY (p_ids) AND jsonb_typeof(a.operation) = 'object' AND NOT a.operation ? 'closed'
$$;

-- The task begins anew: what was passed on counts no more.
CREATE OR REPLACE FUNCTION forget_cancel(p_id text) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    UPDATE task_attempts a SET operation = a.operation - 'cancel_requested'
    WHERE a.task_id = p_id AND jsonb_typeof(a.operation) = 'object' AND a.operation ? 'cancel_requested'
$$;
