-- Recovery: tasks whose lease ran out go back to the queue, or end `failed` with `worker timeout` when their
-- attempts are used up (as the origin has it), or `cancelled` when that was asked for. The token changes, so
-- a late answer of the old worker is stale. Rows that others hold are skipped: the next call finds them.
CREATE OR REPLACE FUNCTION recover_tokens(p_tokens bigint[], p_now timestamptz) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    epoch timestamptz := note_server_epoch(p_now);
    recovered integer;
    ended text[];
BEGIN
    WITH late AS (
        SELECT t.task_id, t.claim_token, t.worker_id, t.attempts, t.started_at, t.cancel_requested_at,
               t.attempts >= coalesce(t.max_attempts, s.max_attempts) AS used_up, s.result_ttl
        FROM tasks t, settings s
        WHERE t.status = 'running' AND t.request IS NOT NULL AND t.claim_token = ANY (p_tokens)
          AND p_now > epoch + (t.locked_until - t.updated_at)
        ORDER BY t.task_id FOR UPDATE OF t SKIP LOCKED
    ), told AS (
        INSERT INTO task_attempts AS a (task_id, token, attempt, worker_id, started_at, finished_at, outcome, error, error_code)
        SELECT l.task_id, l.claim_token, l.attempts, l.worker_id, l.started_at, p_now,
               CASE WHEN l.cancel_requested_at IS NULL THEN 'lost' ELSE 'cancelled' END, 'worker timeout', 'worker_timeout'
        FROM late l
        ON CONFLICT (task_id, token) DO UPDATE
        SET finished_at = excluded.finished_at, outcome = excluded.outcome, error = excluded.error,
            error_code = excluded.error_code
    ), back AS (
        UPDATE tasks t SET
            status = CASE WHEN l.used_up OR l.cancel_requested_at IS NOT NULL THEN 'failed' ELSE 'pending' END,
            error = CASE WHEN l.cancel_requested_at IS NOT NULL THEN 'cancelled'
                         WHEN l.used_up THEN 'worker timeout' ELSE t.error END,
            error_code = CASE WHEN l.cancel_requested_at IS NOT NULL THEN 'cancelled'
                              WHEN l.used_up THEN 'worker_timeout' ELSE t.error_code END,
            claim_token = nextval('claim_token_seq'), worker_id = NULL, locked_until = NULL, updated_at = p_now,
            run_at = CASE WHEN l.used_up OR l.cancel_requested_at IS NOT NULL THEN t.run_at ELSE p_now END,
            finished_at = CASE WHEN l.used_up OR l.cancel_requested_at IS NOT NULL THEN p_now END,
            expires_at = CASE WHEN l.used_up OR l.cancel_requested_at IS NOT NULL THEN p_now + l.result_ttl END
        FROM late l WHERE t.task_id = l.task_id
        RETURNING t.task_id, t.status || '' AS now_is
    )
    SELECT count(*), array_agg(back.task_id) FILTER (WHERE back.now_is = 'failed') INTO recovered, ended FROM back;
    IF ended IS NOT NULL THEN
        PERFORM announce_done(ended);
    END IF;
    IF recovered > coalesce(cardinality(ended), 0) THEN
        PERFORM announce_ready();
    END IF;
    RETURN recovered;
END $$;

-- Tasks that had to start by a time that has passed end `failed` with `expired`.
CREATE OR REPLACE FUNCTION expire(p_now timestamptz DEFAULT clock_timestamp()) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE ended text[];
BEGIN
    IF NOT EXISTS (SELECT FROM tasks t WHERE t.status = 'pending' AND t.start_before IS NOT NULL AND t.start_before < p_now) THEN
        RETURN 0;
    END IF;
    WITH late AS (
        SELECT t.task_id FROM tasks t WHERE t.status = 'pending' AND t.start_before IS NOT NULL AND t.start_before < p_now
        ORDER BY t.start_before LIMIT 1000 FOR UPDATE SKIP LOCKED
    ), done AS (
        UPDATE tasks t SET status = 'failed', error = 'expired', error_code = 'expired',
            claim_token = nextval('claim_token_seq'), updated_at = p_now, finished_at = p_now,
            expires_at = p_now + (SELECT s.result_ttl FROM settings s)
        FROM late WHERE t.task_id = late.task_id
        RETURNING t.task_id
    )
    SELECT array_agg(done.task_id) INTO ended FROM done;
    PERFORM announce_done(ended);
    RETURN coalesce(cardinality(ended), 0);
END $$;

-- The periodic recovery of workers and API: also when the limit is 0 or every slot is busy. Answers how many
-- tasks were taken back; 0 as well when somebody else is claiming, for a claim recovers by itself.
CREATE OR REPLACE FUNCTION recover() RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    n timestamptz;
    r record;
    recovered integer := 0;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'recover needs READ COMMITTED' USING ERRCODE = 'feature_not_supported';
    END IF;
    IF NOT pg_try_advisory_xact_lock(lock_key()) THEN
        RETURN 0;
    END IF;
    n := clock_timestamp();
    SELECT * INTO r FROM running_now(NULL, '{}', n, last_ledger());
    IF r.overdue IS NOT NULL THEN
        recovered := recover_tokens(r.overdue, n);
    END IF;
    IF r.swept THEN
        PERFORM write_ledger(r.ledger, r.alive || r.overdue);
    END IF;
    RETURN recovered + expire(n);
END $$;
