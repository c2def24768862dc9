-- The one place that controls concurrency. Claims up to p_slots tasks for one process, never letting more than
-- settings.max_concurrent run in all.
--   p_worker  unique for one run of one process
--   p_held    tokens that this process still holds: a task that runs in its name but is not among them was
--             claimed by a call whose answer was lost; it is handed out again (outcome `again`)
--   p_types   the task types it serves; NULL for every registered one
-- Answers one row a task (outcome `claimed` or `again`), or a single row that says why there is none: `busy`
-- (another process is claiming), `full` (the limit is reached), `empty` (nothing is due; an insert will
-- notify), `unsure` (nothing is due, but an insert that will not notify may be under way: look again soon).
-- p_inline_bytes: bodies (request, metadata, checkpoint) beyond this sum of bytes come as NULL; fetch them with
-- claimed_bodies. The answer is sent before the lock is released: a client that stops reading in the middle of
-- an answer larger than the socket's buffers would stop every other claim. NULL: everything comes at once.
-- next_due: when the next delayed task of these types falls due, from now, where known.
CREATE OR REPLACE FUNCTION claim(
    p_worker text, p_slots integer, p_held bigint[] DEFAULT '{}', p_lease interval DEFAULT interval '60 seconds',
    p_types text[] DEFAULT NULL, p_inline_bytes integer DEFAULT NULL
) RETURNS TABLE (
    outcome text, next_due interval, task_id text, token bigint, task_type text, request text, attempt integer,
    max_attempts integer, timeout_seconds double precision, tenant text, metadata jsonb, checkpoint jsonb,
    traceparent text, waited interval
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    n timestamptz;
    types text[] := p_types;
    held bigint[] := array_remove(coalesce(p_held, '{}'), NULL);
    alive bigint[];
    mine bigint[];
    r record;
    got record;
    l claim_ledger;
    free integer;
    again text[];
    taken text[];
    tokens bigint[];
    verdict text := 'full';
    due interval;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'claim needs READ COMMITTED, this transaction is %', current_setting('transaction_isolation')
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'In another isolation level the count would be older than the lock, and the limit would break.';
    END IF;

    IF p_worker IS NULL OR p_slots IS NULL OR p_slots < 0 OR p_lease IS NULL OR p_lease <= interval '0' THEN
        RAISE EXCEPTION 'claim needs a worker, a number of slots and a lease, not %, %, %', p_worker, p_slots, p_lease
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    -- The lock in a statement of its own: the count below must be younger than the wait. Try first, then wait
    -- in line, since a mere try starves beside workers that block.
    IF NOT pg_try_advisory_xact_lock(lock_key()) THEN
        DECLARE
            timeout_before text := current_setting('lock_timeout');
        BEGIN
            PERFORM set_config('lock_timeout', '1s', true);
            PERFORM pg_advisory_xact_lock(lock_key());
            PERFORM set_config('lock_timeout', timeout_before, true);
        EXCEPTION WHEN lock_not_available THEN
            outcome := 'busy';
            RETURN NEXT;
            RETURN;
        END;
    END IF;

    n := clock_timestamp();  -- not now(): the transaction began before the wait
    SELECT * INTO r FROM running_now(p_worker, held, n, last_ledger());
    l := r.ledger;
    alive := r.alive;
    mine := r.mine;
    IF r.overdue IS NOT NULL THEN
        PERFORM recover_tokens(r.overdue, n);
        -- what recovery had to leave (a row held by others, a fresh server) goes on counting
        SELECT alive || coalesce(array_agg(t.claim_token), '{}') INTO alive
        FROM tasks t WHERE t.status = 'running' AND num_nulls(t.request) = 0 AND t.claim_token = ANY (r.overdue);
        IF mine IS NOT NULL THEN
            SELECT array_agg(k) INTO mine FROM unnest(mine) k WHERE k = ANY (alive);
        END IF;
    END IF;

    IF r.swept THEN
        PERFORM expire(n);
    END IF;

    -- Again: what was counted as finished had finished by now, so the rows' own times prove the limit.
    n := clock_timestamp();
    IF mine IS NOT NULL THEN
        SELECT array_agg(m.task_id ORDER BY m.claim_token) INTO again
        FROM (
            SELECT t.task_id, t.claim_token FROM tasks t
            WHERE t.status = 'running' AND num_nulls(t.request) = 0 AND t.claim_token = ANY (mine) AND t.worker_id = p_worker
            ORDER BY t.claim_token LIMIT p_slots FOR UPDATE SKIP LOCKED
        ) AS m;
        UPDATE tasks t SET locked_until = n + p_lease, updated_at = n WHERE t.task_id = ANY (again);
    END IF;

    free := least(p_slots - coalesce(cardinality(again), 0),
                  (SELECT s.max_concurrent FROM settings s) - cardinality(alive));
    IF free > 0 THEN
        IF types IS NULL THEN
            SELECT array_agg(name) INTO types FROM task_types;
        END IF;
        SELECT * INTO got FROM take(p_worker, free, types, n, p_lease, l);
        IF got.taken IS NULL THEN
            verdict := 'empty';
        END IF;
    END IF;

    IF verdict = 'empty' AND again IS NULL THEN
        -- Going idle. From here on inserts shall notify; then look once more, if no insert is under way that
        -- did not see this. (A sequence: visible at once to every transaction.)
        PERFORM setval('waiting_workers_until', greatest((SELECT last_value FROM waiting_workers_until),
                                                         epoch_ms(n + interval '1 minute')));
        IF pg_try_advisory_xact_lock(lock_key() + 1) THEN
            IF l.sweep_cost < interval '20 milliseconds' THEN
                -- without marks, while that is cheap: nothing that committed late shall wait for the next sweep
                l.lanes := '{}';
                l.marks := '{}';
                l.due_marks := '{}';
            END IF;
            SELECT * INTO got FROM take(p_worker, free, types, n, p_lease, l);
        ELSE
            verdict := 'unsure';
        END IF;
    END IF;

    IF free > 0 THEN
        taken := got.taken;
        tokens := got.tokens;
        l := got.ledger;
    END IF;
    IF r.swept OR taken IS NOT NULL THEN
        PERFORM write_ledger(l, alive || tokens);
    END IF;

    IF taken IS NULL AND again IS NULL THEN
        IF verdict <> 'full' THEN
            due := next_due(types, n);
        END IF;
        outcome := verdict;
        next_due := due;
        RETURN NEXT;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT b.outcome, NULL::interval, b.task_id, b.claim_token, b.task_type,
           CASE WHEN b.inline THEN coalesce(b.request_raw::text, b.request::text) END, b.attempts, b.max_attempts,
           b.timeout_seconds, b.tenant, CASE WHEN b.inline THEN b.metadata END,
           CASE WHEN b.inline THEN b.checkpoint END, b.traceparent, b.waited
    FROM (
        SELECT CASE WHEN t.task_id = ANY (again) THEN 'again' ELSE 'claimed' END AS outcome, i.ord, t.task_id,
               t.claim_token, t.task_type, t.request_raw, t.request, t.attempts,
               coalesce(t.max_attempts, s.max_attempts) AS max_attempts,
               CASE WHEN t.timeout_seconds > 0 AND t.timeout_seconds < 1e9 THEN t.timeout_seconds END AS timeout_seconds, t.tenant, t.metadata,
               c.checkpoint, t.traceparent, n - greatest(n - interval '1 year', least(n, greatest(t.created_at, t.run_at))) AS waited,
               p_inline_bytes IS NULL OR p_inline_bytes >= sum(
                   CASE WHEN pg_column_size(t.request) > p_inline_bytes THEN p_inline_bytes + 1  -- not even unpacked
                   ELSE octet_length(coalesce(t.request_raw::text, t.request::text))
                        + coalesce(octet_length(t.metadata::text), 0) + coalesce(octet_length(c.checkpoint::text), 0) END
               ) OVER (ORDER BY i.ord) AS inline
        FROM unnest(again || taken) WITH ORDINALITY AS i (id, ord)
        JOIN tasks t ON t.task_id = i.id
        CROSS JOIN settings s
        LEFT JOIN LATERAL (
            SELECT a.checkpoint FROM task_attempts a
            WHERE t.run_at IS NOT NULL  -- as all are that came back to the queue
              AND a.task_id = t.task_id AND a.checkpoint IS NOT NULL
            ORDER BY a.token DESC LIMIT 1
        ) AS c ON true
        WHERE t.task_id = ANY (again || taken)
    ) AS b
    ORDER BY b.ord;
END $$;

-- The bodies of claimed tasks that claim left out of its answer; a task that is not held any more is missing.
CREATE OR REPLACE FUNCTION claimed_bodies(p_ids text[], p_tokens bigint[])
RETURNS TABLE (task_id text, token bigint, request text, metadata jsonb, checkpoint jsonb)
LANGUAGE sql STABLE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
    SELECT t.task_id, t.claim_token, coalesce(t.request_raw::text, t.request::text), t.metadata,
           (SELECT a.checkpoint FROM task_attempts a
            WHERE a.task_id = t.task_id AND a.checkpoint IS NOT NULL ORDER BY a.token DESC LIMIT 1)
    FROM unnest(p_ids, p_tokens) AS g (id, token) JOIN tasks t ON t.task_id = g.id AND t.claim_token = g.token
    WHERE t.task_id = ANY (p_ids)
$$;
