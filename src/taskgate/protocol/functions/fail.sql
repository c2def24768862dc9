-- Ends attempts that failed. p_retry: may be tried again while attempts are left, after p_delays (NULL: backoff
-- with jitter); otherwise the task ends `failed`. The attempt is recorded either way. An attempt that was stopped while
-- it sent a paid call (see intend) is not tried again: it ends with `submit_ambiguous`. A task whose cancellation was
-- asked for ends `cancelled`; but with p_retry and an open operation at the provider it is left to the next worker, as
-- release does.
-- Answers `done`, `already`, `stale` or `busy` for each, see verdicts.
CREATE OR REPLACE FUNCTION fail(
    p_ids text[], p_tokens bigint[], p_errors text[], p_codes text[], p_infos text[], p_retry boolean[], p_delays interval[]
) RETURNS TABLE (task_id text, token bigint, outcome text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    n timestamptz := clock_timestamp();
    done text[];
    ended text[];
    waiting text[];
BEGIN
    WITH given AS (
        SELECT DISTINCT ON (u.id, u.token) * FROM unnest(p_ids, p_tokens, p_errors, p_codes, p_infos, p_retry, p_delays)
            AS u (id, token, error, code, info, retry, delay)
    ), mine AS (
        SELECT t.task_id, t.claim_token, b.attempts, t.worker_id, t.started_at, s.result_ttl, w.waits,
               t.cancel_requested_at IS NOT NULL AND NOT w.waits AS cancelled,
               CASE WHEN w.waits THEN g.error WHEN t.cancel_requested_at IS NOT NULL THEN 'cancelled' WHEN p.unsure THEN 'submit_ambiguous' ELSE g.error END AS error,
               CASE WHEN w.waits THEN g.code WHEN t.cancel_requested_at IS NOT NULL THEN 'cancelled' WHEN p.unsure THEN 'submit_ambiguous' ELSE g.code END AS code,
               g.info::jsonb AS info, coalesce(g.delay, backoff(b.attempts)) AS delay,
               w.waits OR coalesce(g.retry, false) AND NOT p.unsure AND t.cancel_requested_at IS NULL AND b.attempts < coalesce(t.max_attempts, s.max_attempts) AS again
        FROM given g
        JOIN tasks t ON t.task_id = g.id AND t.claim_token = g.token AND t.status || '' = 'running'
        CROSS JOIN settings s
        CROSS JOIN LATERAL (SELECT greatest(1, t.attempts)) AS b (attempts)  -- it has begun
        CROSS JOIN LATERAL (SELECT coalesce(g.retry, false) AND is_ambiguous(t.task_id, t.claim_token)) AS p (unsure)
        CROSS JOIN LATERAL (SELECT coalesce(CASE WHEN g.retry AND t.cancel_requested_at IS NOT NULL AND t.start_before > n
                                                 THEN is_followed(t.task_id, n) END, false)) AS w (waits)
        WHERE t.task_id = ANY (p_ids)
        ORDER BY t.task_id FOR UPDATE OF t SKIP LOCKED
    ), told AS (
        INSERT INTO task_attempts AS a (task_id, token, attempt, worker_id, started_at, finished_at, outcome, error, error_code, error_info)
        SELECT m.task_id, m.claim_token, m.attempts, m.worker_id, m.started_at, n,
               CASE WHEN m.cancelled THEN 'cancelled' WHEN m.again THEN 'retried' ELSE 'failed' END, m.error, m.code, m.info
        FROM mine m
        ON CONFLICT (task_id, token) DO UPDATE
        SET finished_at = excluded.finished_at, outcome = excluded.outcome, error = excluded.error,
            error_code = excluded.error_code, error_info = excluded.error_info, attempt = excluded.attempt
    ), put AS (
        UPDATE tasks t SET
            status = CASE WHEN m.again THEN 'pending' ELSE 'failed' END,
            error = m.error, error_code = m.code, error_info = m.info,
            settled_token = t.claim_token,
            claim_token = CASE WHEN m.again THEN nextval('claim_token_seq') ELSE t.claim_token END,
            worker_id = CASE WHEN m.again THEN NULL ELSE t.worker_id END,
            attempts = CASE WHEN m.waits THEN m.attempts - 1 ELSE m.attempts END,
            locked_until = NULL, updated_at = n,
            run_at = CASE WHEN m.waits THEN n + least(m.delay, interval '30 seconds') WHEN m.again THEN n + m.delay ELSE t.run_at END,
            finished_at = CASE WHEN NOT m.again THEN n END,
            expires_at = CASE WHEN NOT m.again THEN n + m.result_ttl END
        FROM mine m WHERE t.task_id = m.task_id AND t.task_id = ANY (p_ids)
        RETURNING t.task_id, t.status || '' AS now_is, m.waits
    )
    SELECT array_agg(put.task_id), array_agg(put.task_id) FILTER (WHERE put.now_is = 'failed'), array_agg(put.task_id) FILTER (WHERE put.waits)
    INTO done, ended, waiting FROM put;
    IF waiting IS NOT NULL THEN
        PERFORM pass_on_cancel(waiting);
    END IF;
    PERFORM announce_done(ended);
    IF cardinality(done) > coalesce(cardinality(ended), 0) THEN
        PERFORM announce_tasks(done);
    END IF;
    RETURN QUERY SELECT * FROM verdicts(p_ids, p_tokens, done);
END $$;
