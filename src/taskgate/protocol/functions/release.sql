-- Gives tasks back without costing an attempt: a drain, a snooze, a provider that throttles. Code `throttled`
-- adds the delay to the task's account; beyond settings.max_throttle in all it ends `failed`. It also puts the task's
-- upstream, or its type where it has none, on a cool-down: nothing of it starts before the delay is over.
-- A task whose cancellation was asked for ends `cancelled`, unless its operation at the provider is open: then the next
-- worker cancels it, half a minute later at most (see cancel).
-- Answers `done`, `already`, `stale` or `busy` for each, see verdicts.
CREATE OR REPLACE FUNCTION release(
    p_ids text[], p_tokens bigint[], p_delays interval[], p_codes text[], p_reasons text[], p_infos text[]
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
        SELECT DISTINCT ON (u.id, u.token) * FROM unnest(p_ids, p_tokens, p_delays, p_codes, p_reasons, p_infos)
            AS u (id, token, delay, code, reason, info)
    ), mine AS (
        SELECT t.task_id, t.claim_token, t.attempts, t.worker_id, t.started_at, s.result_ttl, g.code, g.reason, g.info::jsonb AS info,
               coalesce(g.delay, interval '0') AS delay,
               t.cancel_requested_at IS NOT NULL AND NOT w.waits AS cancelled, w.waits,
               NOT w.waits AND coalesce(g.code = 'throttled' AND t.throttled + coalesce(g.delay, interval '0') > s.max_throttle, false)
                   AS too_long
        FROM given g
        JOIN tasks t ON t.task_id = g.id AND t.claim_token = g.token AND t.status || '' = 'running'
        CROSS JOIN settings s
        CROSS JOIN LATERAL (SELECT coalesce(CASE WHEN t.cancel_requested_at IS NOT NULL AND t.start_before > n
                                                 THEN is_followed(t.task_id, n) END, false)) AS w (waits)
        WHERE t.task_id = ANY (p_ids)
        ORDER BY t.task_id FOR UPDATE OF t SKIP LOCKED
    ), told AS (
        INSERT INTO task_attempts AS a (task_id, token, attempt, worker_id, started_at, finished_at, outcome, error, error_code, error_info)
        SELECT m.task_id, m.claim_token, m.attempts, m.worker_id, m.started_at, n,
               CASE WHEN m.cancelled THEN 'cancelled' WHEN m.too_long THEN 'failed' ELSE 'released' END, m.reason, m.code, m.info
        FROM mine m
        ON CONFLICT (task_id, token) DO UPDATE
        SET finished_at = excluded.finished_at, outcome = excluded.outcome, error = excluded.error,
            error_code = excluded.error_code, error_info = excluded.error_info, attempt = excluded.attempt
    ), put AS (
        UPDATE tasks t SET
            status = CASE WHEN m.cancelled OR m.too_long THEN 'failed' ELSE 'pending' END,
            error = CASE WHEN m.cancelled THEN 'cancelled' WHEN m.too_long THEN m.reason ELSE t.error END,
            error_code = CASE WHEN m.cancelled THEN 'cancelled' WHEN m.too_long THEN 'throttled' ELSE t.error_code END,
            error_info = CASE WHEN m.too_long THEN m.info ELSE t.error_info END,
            settled_token = t.claim_token, claim_token = nextval('claim_token_seq'),
            attempts = greatest(0, t.attempts - 1), releases = t.releases + 1,
            throttled = t.throttled + CASE WHEN m.code = 'throttled' THEN m.delay ELSE interval '0' END,
            worker_id = NULL, locked_until = NULL, updated_at = n,
            run_at = CASE WHEN m.cancelled OR m.too_long THEN t.run_at WHEN m.waits THEN n + least(m.delay, interval '30 seconds')
                          ELSE n + m.delay END,
            finished_at = CASE WHEN m.cancelled OR m.too_long THEN n END,
            expires_at = CASE WHEN m.cancelled OR m.too_long THEN n + m.result_ttl END
        FROM mine m WHERE t.task_id = m.task_id AND t.task_id = ANY (p_ids)
        RETURNING t.task_id, t.status || '' AS now_is, t.cancel_requested_at
    )
    SELECT array_agg(put.task_id), array_agg(put.task_id) FILTER (WHERE put.now_is = 'failed'),
           array_agg(put.task_id) FILTER (WHERE put.now_is = 'pending' AND put.cancel_requested_at IS NOT NULL)
    INTO done, ended, waiting FROM put;
    IF waiting IS NOT NULL THEN
        PERFORM pass_on_cancel(waiting);
    END IF;
    INSERT INTO cooldowns (scope, name, until, reason)
    SELECT CASE t.upstream WHEN '' THEN 'type' ELSE 'upstream' END AS scope, CASE t.upstream WHEN '' THEN t.task_type ELSE t.upstream END AS name,
           n + least(max(u.delay), (SELECT s.max_throttle FROM settings s)), max(u.reason)
    FROM unnest(p_ids, p_delays, p_codes, p_reasons) AS u (id, delay, code, reason) JOIN tasks t ON t.task_id = u.id
    WHERE u.code = 'throttled' AND u.delay > interval '0' AND t.task_id = ANY (done)
    GROUP BY 1, 2;
    PERFORM announce_done(ended);
    IF cardinality(done) > coalesce(cardinality(ended), 0) THEN
        PERFORM announce_tasks(done);
    END IF;
    IF 'released' = ANY (p_codes) THEN
        PERFORM announce_room();  -- it has no use for the room
    END IF;
    RETURN QUERY SELECT * FROM verdicts(p_ids, p_tokens, done);
END $$;
