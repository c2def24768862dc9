-- Writes results (JSON texts) of finished tasks. A task whose cancellation was asked for meanwhile ends
-- `failed` with `cancelled`: that is what the caller of cancel was told.
-- Answers `done`, `already`, `stale` or `busy` for each, see verdicts.
CREATE OR REPLACE FUNCTION complete(p_ids text[], p_tokens bigint[], p_results text[])
RETURNS TABLE (task_id text, token bigint, outcome text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    n timestamptz := clock_timestamp();
    rows_at tid[];
    done text[];
    cancelled text[];
BEGIN
    -- Rows that somebody else has locked are left for the next call: one of them must not hold up its neighbours.
    -- No row is waited for, so their order does not matter.
    SELECT array_agg(l.ctid) INTO rows_at
    FROM (SELECT t.ctid FROM tasks t WHERE t.task_id = ANY (p_ids) AND t.claim_token = ANY (p_tokens)
          FOR NO KEY UPDATE SKIP LOCKED) AS l;
    WITH put AS (
        UPDATE tasks t SET
            status = CASE WHEN t.cancel_requested_at IS NULL THEN 'completed' ELSE 'failed' END,
            result = CASE WHEN t.cancel_requested_at IS NULL THEN g.result::jsonb END,
            error = CASE WHEN t.cancel_requested_at IS NOT NULL THEN 'cancelled' END,
            error_code = CASE WHEN t.cancel_requested_at IS NOT NULL THEN 'cancelled' END,
            error_info = NULL, attempts = greatest(1, t.attempts), settled_token = t.claim_token, locked_until = NULL, updated_at = n, finished_at = n,
            expires_at = n + (SELECT s.result_ttl FROM settings s)
        FROM unnest(p_ids, p_tokens, p_results) AS g (id, token, result)
        WHERE t.ctid = ANY (rows_at) AND t.task_id = g.id AND t.claim_token = g.token AND t.status || '' = 'running'
        RETURNING t.task_id, t.cancel_requested_at
    )
    SELECT array_agg(put.task_id), array_agg(put.task_id) FILTER (WHERE put.cancel_requested_at IS NOT NULL)
    INTO done, cancelled FROM put;
    IF cancelled IS NOT NULL THEN
        INSERT INTO task_attempts AS a (task_id, token, attempt, worker_id, started_at, finished_at, outcome, error, error_code)
        SELECT t.task_id, t.claim_token, t.attempts, t.worker_id, t.started_at, n, 'cancelled', 'cancelled', 'cancelled'
        FROM tasks t WHERE t.task_id = ANY (cancelled)
        ON CONFLICT (task_id, token) DO UPDATE
        SET finished_at = excluded.finished_at, outcome = excluded.outcome, error = excluded.error,
            error_code = excluded.error_code, attempt = excluded.attempt;
    END IF;
    IF pg_sequence_last_value('waiting_clients_until') > epoch_ms(n) THEN
        PERFORM announce_done(done);
    END IF;
    IF cardinality(done) = cardinality(p_ids) THEN
        RETURN QUERY SELECT g.id, g.token, 'done' FROM unnest(p_ids, p_tokens) AS g (id, token);
    ELSE
        RETURN QUERY SELECT * FROM verdicts(p_ids, p_tokens, done);
    END IF;
END $$;
