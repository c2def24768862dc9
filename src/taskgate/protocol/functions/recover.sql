-- Recovery: tasks whose lease ran out go back to the queue, or end `failed` with `worker timeout` when their
-- attempts are used up (as the origin has it), or `cancelled` when that was asked for. The token changes, so
-- a late answer of the old worker is stale. Rows that others hold are skipped: the next call finds them.
-- A task that was claimed ahead and does not say that it had begun goes back uncounted (its attempts are 0, see claim),
-- and has a run_at from then on, so it is not taken ahead again: one that kills its process soon does so at its own cost.
-- Paid calls: an attempt that followed an operation at the provider costs nothing, the next one resumes it; one that
-- died while it sent a call ends the task with `submit_ambiguous`, for nobody knows whether the call was paid. A
-- cancelled task with an open operation goes back too, so that the next worker cancels it at the provider (see cancel).
CREATE OR REPLACE FUNCTION recover_tokens(p_tokens bigint[], p_now timestamptz) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    epoch timestamptz := note_server_epoch(p_now);
    ttl interval := (SELECT s.result_ttl FROM settings s);
    late text[];
    ended text[];
    unsure text[];
    followed text[];
    waiting text[];
BEGIN
    SELECT array_agg(l.task_id),
           array_agg(l.task_id) FILTER (WHERE l.cancelled AND NOT (l.follows AND l.in_time) OR l.ambiguous OR (l.used_up AND NOT l.follows)),
           array_agg(l.task_id) FILTER (WHERE l.ambiguous AND NOT l.cancelled),
           array_agg(l.task_id) FILTER (WHERE l.follows),
           array_agg(l.task_id) FILTER (WHERE l.cancelled AND l.follows AND l.in_time)
    INTO late, ended, unsure, followed, waiting
    FROM (
        SELECT t.task_id, t.cancel_requested_at IS NOT NULL AS cancelled, coalesce(t.start_before > p_now, false) AS in_time,
               t.attempts >= coalesce(t.max_attempts, s.max_attempts) AS used_up,
               is_ambiguous(t.task_id, t.claim_token) AS ambiguous, is_followed(t.task_id, p_now) AS follows
        FROM tasks t, settings s
        WHERE t.status = 'running' AND num_nulls(t.request) = 0 AND t.claim_token = ANY (p_tokens)
          -- one lease since the server started (times that no lease can have are taken as they are)
          AND CASE WHEN t.updated_at BETWEEN p_now - interval '30 days' AND p_now AND t.locked_until > p_now - interval '30 days'
                   THEN p_now > epoch + (t.locked_until - t.updated_at) ELSE true END
        FOR UPDATE OF t SKIP LOCKED
    ) AS l;
    IF late IS NULL THEN
        RETURN 0;
    END IF;
    INSERT INTO task_attempts AS a (task_id, token, attempt, worker_id, started_at, finished_at, outcome, error, error_code)
    SELECT t.task_id, t.claim_token, t.attempts, t.worker_id, t.started_at, p_now,
           CASE WHEN t.cancel_requested_at IS NULL OR t.task_id = ANY (waiting) THEN 'lost' ELSE 'cancelled' END,
           CASE WHEN t.task_id = ANY (unsure) THEN 'submit_ambiguous' ELSE 'worker timeout' END,
           CASE WHEN t.task_id = ANY (unsure) THEN 'submit_ambiguous' ELSE 'worker_timeout' END
    FROM tasks t WHERE t.task_id = ANY (late)
    ON CONFLICT (task_id, token) DO UPDATE
    SET finished_at = excluded.finished_at, outcome = excluded.outcome, error = excluded.error,
        error_code = excluded.error_code;
    IF ended IS NOT NULL THEN
        UPDATE tasks t SET
            status = 'failed', claim_token = nextval('claim_token_seq'),
            error = CASE WHEN t.cancel_requested_at IS NOT NULL THEN 'cancelled'
                         WHEN t.task_id = ANY (unsure) THEN 'submit_ambiguous' ELSE 'worker timeout' END,
            error_code = CASE WHEN t.cancel_requested_at IS NOT NULL THEN 'cancelled'
                              WHEN t.task_id = ANY (unsure) THEN 'submit_ambiguous' ELSE 'worker_timeout' END,
            error_info = NULL, worker_id = NULL, locked_until = NULL, updated_at = p_now, finished_at = p_now,
            expires_at = p_now + ttl
        WHERE t.task_id = ANY (ended);
        PERFORM announce_done(ended);
    END IF;
    IF cardinality(late) > coalesce(cardinality(ended), 0) THEN
        UPDATE tasks t SET
            status = 'pending', claim_token = nextval('claim_token_seq'), run_at = p_now, worker_id = NULL,
            attempts = CASE WHEN t.task_id = ANY (followed) THEN greatest(0, t.attempts - 1) ELSE t.attempts END,
            locked_until = NULL, updated_at = p_now, finished_at = NULL, expires_at = NULL
        WHERE t.task_id = ANY (late) AND NOT t.task_id = ANY (coalesce(ended, '{}'));
        IF waiting IS NOT NULL THEN
            PERFORM pass_on_cancel(waiting);
        END IF;
        PERFORM announce_tasks(late);
    END IF;
    RETURN cardinality(late);
END $$;

-- Tasks that had to start by a time that has passed end `failed` with `expired`, at most 1000 a call; cancelled ones that
-- no worker took in time with `cancelled`.
CREATE OR REPLACE FUNCTION expire(p_now timestamptz DEFAULT clock_timestamp()) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE ended text[];
BEGIN
    SELECT array_agg(late.task_id) INTO ended
    FROM (
        SELECT t.task_id FROM tasks t WHERE t.status = 'pending' AND t.start_before IS NOT NULL AND t.start_before < p_now
        ORDER BY t.start_before LIMIT 1000 FOR UPDATE SKIP LOCKED
    ) AS late;
    IF ended IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE tasks t SET status = 'failed', error_info = NULL,
        error = CASE WHEN t.cancel_requested_at IS NULL THEN 'expired' ELSE 'cancelled' END,
        error_code = CASE WHEN t.cancel_requested_at IS NULL THEN 'expired' ELSE 'cancelled' END,
        claim_token = nextval('claim_token_seq'), updated_at = p_now, finished_at = p_now,
        expires_at = p_now + (SELECT s.result_ttl FROM settings s)
    WHERE t.task_id = ANY (ended);
    PERFORM announce_done(ended);
    RETURN cardinality(ended);
END $$;

-- The periodic recovery of workers and API: also when the limit is 0 or every slot is busy. Answers how many
-- tasks were taken back or expired; takes back none when somebody else is claiming, for a claim recovers by itself.
CREATE OR REPLACE FUNCTION recover() RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    n timestamptz;
    r record;
    recovered integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'recover needs READ COMMITTED, this transaction is %', current_setting('transaction_isolation')
            USING ERRCODE = 'feature_not_supported';
    END IF;
    recovered := expire();
    IF NOT pg_try_advisory_xact_lock(lock_key()) THEN
        RETURN recovered;
    END IF;
    n := clock_timestamp();
    r := running_now(NULL, '{}', n);
    IF r.overdue IS NOT NULL THEN
        recovered := recovered + recover_tokens(r.overdue, n);
        PERFORM announce_room();
    END IF;
    IF r.swept THEN
        PERFORM write_ledger(r.ledger, r.alive || r.overdue, coalesce(cardinality(r.alive || r.overdue), 0));
    END IF;
    RETURN recovered;
END $$;
