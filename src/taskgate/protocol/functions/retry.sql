-- Puts a failed task back into the queue with all its attempts; what happened before stays in task_attempts.
-- A paid call that nobody knows the end of counts as over from here on, so it is sent again; an operation at the
-- provider that is still open is resumed.
-- Answers `done`, `not_failed` or `not_found`.
CREATE OR REPLACE FUNCTION retry(p_id text, p_tenant text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    t record;
    n timestamptz;
BEGIN
    SELECT status, request, task_type INTO t FROM tasks
    WHERE task_id = p_id AND (p_tenant IS NULL OR tenant = p_tenant) FOR UPDATE;
    n := clock_timestamp();
    IF NOT FOUND THEN
        RETURN 'not_found';
    ELSIF t.status <> 'failed' OR t.request IS NULL OR t.task_type IS NULL THEN  -- an adopted row may have nothing to run
        RETURN 'not_failed';
    END IF;
    UPDATE tasks SET status = 'pending', attempts = 0, throttled = interval '0', claim_token = nextval('claim_token_seq'), worker_id = NULL,
        run_at = n, flow = flow_id(task_type, priority, tenant, upstream, model), start_before = NULL, locked_until = NULL, updated_at = n, finished_at = NULL, expires_at = NULL,
        cancel_requested_at = NULL, result = NULL, error = NULL, error_code = NULL, error_info = NULL
    WHERE task_id = p_id;
    PERFORM forget_cancel(p_id);
    UPDATE task_attempts a SET operation = '{"closed": "retried"}'
    WHERE a.task_id = p_id AND a.submit_intent_at IS NOT NULL AND a.operation IS NULL;
    -- how long workers have missed the account of an operation counts anew
    UPDATE task_attempts a SET checkpoint = a.checkpoint - 'account_missing_since'
    WHERE a.task_id = p_id AND jsonb_typeof(a.checkpoint) = 'object' AND a.checkpoint ? 'account_missing_since';
    PERFORM announce_tasks(ARRAY[p_id]);
    RETURN 'done';
END $$;
