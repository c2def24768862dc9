-- The one place that controls concurrency. Claims up to p_slots tasks for one process, never letting more than
-- settings.max_concurrent run in all.
--   p_worker  unique for one run of one process
--   p_held    tokens that this process still holds: a task that runs in its name but is not among them was
--             claimed by a call whose answer was lost; it is handed out again (outcome `again`)
--   p_types   the task types it serves; NULL for every registered one
--   p_ahead   so many more, for a process whose tasks end sooner than a claim takes: it holds them until a slot is free,
--             and gives them back (release) where that takes more than a moment. With them it holds no more than half of
--             the limit, so that others go on if it dies. Their attempt is not counted yet: nobody would know then
--             whether they had begun (see recover_tokens). So what came back once, has a single attempt or has to start
--             in time is not taken ahead, nor anything behind it: it would be overtaken. None
--             while tasks of other types wait: they could wait for room for ever; nor where starts are limited by a rate,
--             for a start that is given back is spent. Not NULL: it can hold more than its slots, so that whatever it lost
--             comes again at once
-- Answers one row a task (outcome `claimed` or `again`), or a single row that says why there is none: `busy`
-- (another process is claiming), `full` (the limit is reached), `limited` (what waits is of groups whose limit is
-- reached), `empty` (nothing is due), `unsure` (nothing was found, but an insert that will not notify may be under way,
-- or the directory of flows was not seen whole: look again soon). After `empty` and `limited` an insert will notify,
-- after `full` and `limited` whoever leaves room that he cannot use.
-- p_inline_bytes: bodies (request, metadata, checkpoint) beyond this sum of bytes come as NULL; fetch them with
-- claimed_bodies. The answer is sent before the lock is released: a client that stops reading in the middle of
-- an answer larger than the socket's buffers would stop every other claim. NULL: everything comes at once.
-- p_flush false: the commit, which must be of this call alone, does not wait for the disk, so that the lock is free at
-- once; the answer counts only after flush(), next on the same session. A crash before it undoes the claim and all
-- that was committed on top of it, since that is behind it in the log.
-- p_listener: the number that listen_alone gave to this process's listening session, while it lives: an idle process is
-- then woken alone, on its own channel. NULL: it listens on the channel of all. 0: it hears nothing.
-- next_due: when the next delayed task of these types falls due, or a limit lets one through, from now, where known.
-- paid: the last attempt that said it would send a paid call (see intend): intent_at, operation, account, token.
CREATE OR REPLACE FUNCTION claim(
    p_worker text, p_slots integer, p_held bigint[] DEFAULT '{}', p_lease interval DEFAULT interval '60 seconds',
    p_types text[] DEFAULT NULL, p_inline_bytes integer DEFAULT NULL, p_flush boolean DEFAULT true, p_listener integer DEFAULT NULL,
    p_ahead integer DEFAULT NULL
) RETURNS TABLE (
    outcome text, next_due interval, task_id text, token bigint, task_type text, request text, attempt integer,
    max_attempts integer, timeout_seconds double precision, tenant text, metadata jsonb, checkpoint jsonb,
    traceparent text, waited interval, upstream text, model text, paid jsonb
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    n timestamptz;
    types text[] := p_types;
    held bigint[] := array_remove(coalesce(p_held, '{}'), NULL);
    alive bigint[];
    mine bigint[];
    fleet record;
    r record;
    got record;
    l claim_ledger;
    room integer;
    free integer;
    ahead integer := 0;
    has integer := 0;  -- of what it holds, what still runs
    counted integer := 0;  -- for so many tasks there is a slot
    again tid[];
    taken tid[];
    reserved token_reservations[];
    verdict text := 'full';
    passes_on boolean := false;
    seated boolean;
    idle integer;
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
    r := running_now(p_worker, held, n);
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
        IF EXISTS (SELECT FROM token_reservations) THEN
            l := settle_tokens(alive, n, true, l);
        END IF;
    END IF;
    IF NOT p_flush AND r.overdue IS NULL AND NOT r.swept THEN  -- an end that somebody may have read is not undone
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;

    -- Again: what was counted as finished had finished by now, so the rows' own times prove the limit.
    n := clock_timestamp();
    IF mine IS NOT NULL THEN
        SELECT array_agg(m.ctid ORDER BY m.claim_token) INTO again
        FROM (
            SELECT t.ctid, t.claim_token FROM tasks t
            WHERE t.status = 'running' AND num_nulls(t.request) = 0 AND t.claim_token = ANY (mine) AND t.worker_id = p_worker
            ORDER BY t.claim_token LIMIT CASE WHEN p_ahead IS NULL THEN p_slots END FOR NO KEY UPDATE SKIP LOCKED
        ) AS m;
    END IF;

    SELECT s.max_concurrent, s.max_attempts INTO fleet FROM settings s;
    room := fleet.max_concurrent - cardinality(alive);
    free := least(p_slots - coalesce(cardinality(again), 0), room);
    IF types IS NULL THEN
        SELECT array_agg(name) INTO types FROM task_types;
    END IF;
    IF p_ahead > 0 THEN
        IF alive <> '{}' THEN
            has := (SELECT count(*) FROM unnest(alive) AS a WHERE a IN (SELECT u FROM unnest(held) AS u));  -- not just settled
        END IF;
        ahead := greatest(0, least(p_ahead + least(0, p_slots - coalesce(cardinality(again), 0)),
                                   room - greatest(free, 0),
                                   fleet.max_concurrent / 2 - coalesce(cardinality(again), 0) - greatest(free, 0) - has));
        IF ahead > 0 AND (others_wait(types) OR EXISTS (
            SELECT FROM limits m WHERE num_nonnulls(m.requests_per_minute, m.tokens_per_minute) > 0
        )) THEN
            ahead := 0;
        END IF;
    END IF;
    counted := greatest(free, 0);
    free := counted + ahead;
    IF free > 0 THEN
        got := take(free, types, n, alive, l);
        l := got.ledger;
        verdict := got.verdict;
    END IF;

    IF verdict IN ('empty', 'limited') AND again IS NULL AND free > ahead THEN
        -- Going idle. From here on inserts shall notify; then look once more, if no insert is under way that
        -- did not see this. (A sequence: visible at once to every transaction.)
        seated := be_idle(nullif(p_listener, 0));
        IF p_listener IS NULL THEN
            PERFORM wait_until('waiting_workers_until', n + interval '1 minute');
        ELSIF p_listener <> 0 THEN
            PERFORM wait_until('waiting_listeners_until', n + interval '1 minute');
        END IF;
        IF seated AND pg_try_advisory_xact_lock(lock_key() + 1) THEN
            IF l.sweep_cost < interval '20 milliseconds' THEN
                -- without marks, while that is cheap: nothing that committed late shall wait for the next sweep
                l.flows := '{}';
                l.marks := '{}';
                l.due_marks := '{}';
            END IF;
            got := take(free, types, n, alive, l);
            verdict := got.verdict;
        ELSE
            verdict := 'unsure';
        END IF;
    END IF;
    IF verdict IN ('full', 'limited') AND again IS NULL AND p_slots > 0 THEN
        PERFORM wait_until('waiting_room_until', n + interval '1 minute');
    END IF;

    IF free > 0 THEN
        taken := got.rows_at;
        IF ahead > 0 AND cardinality(taken) > counted THEN
            SELECT nullif(taken[:counted + min(p.ord) - 1], '{}') INTO taken
            FROM unnest(taken[counted + 1:] || NULL::tid) WITH ORDINALITY AS p (at, ord) LEFT JOIN tasks t ON t.ctid = p.at
            WHERE t.ctid IS NULL OR t.attempts > 0 OR t.run_at IS NOT NULL OR t.start_before IS NOT NULL
               OR coalesce(t.max_attempts, fleet.max_attempts) <= 1;
            IF taken IS NULL THEN
                verdict := 'full';  -- nothing for a process without a slot
            END IF;
        END IF;
        reserved := got.reserved;
        n := got.started;
        l := got.ledger;
    END IF;
    -- Whoever frees a slot claims next. What it cannot use of the room, others may: those that wait at a limit.
    -- (Tasks that were taken ahead are over before another worker is awake.)
    IF ahead = 0 AND cardinality(alive) < l.ran AND room > coalesce(cardinality(taken), 0) THEN
        IF free > 0 THEN
            passes_on := got.left_over;
        ELSE  -- its slots are taken by what it claimed ahead
            passes_on := any_ready(types, l);
        END IF;
        passes_on := passes_on OR others_wait(types);
        IF passes_on THEN
            PERFORM announce_room();
        END IF;
    END IF;
    idle := CASE WHEN free - ahead > coalesce(cardinality(taken), 0) THEN nullif(p_listener, 0) END;
    IF idle IS DISTINCT FROM nullif(current_setting('taskgate.idle', true), '')::integer THEN
        PERFORM be_idle(idle);
    END IF;
    IF r.swept OR taken IS NOT NULL OR passes_on OR l.buckets <> (r.ledger).buckets THEN
        PERFORM write_ledger(l, alive, cardinality(alive) + coalesce(cardinality(taken), 0));
    END IF;

    IF taken IS NULL AND again IS NULL THEN
        outcome := verdict;
        IF verdict <> 'full' THEN
            next_due := least(next_due(types, n), got.wait);
        END IF;
        RETURN NEXT;
        RETURN;
    END IF;
    IF again IS NULL AND cardinality(taken) = 1 THEN  -- as below without arrays, for an idle fleet waits for it
        UPDATE tasks t SET
            status = 'running', attempts = CASE WHEN counted > 0 THEN least(t.attempts, 2147483646) + 1 ELSE t.attempts END,
            claim_token = nextval('claim_token_seq'), worker_id = p_worker, started_at = n,
            locked_until = n + p_lease, updated_at = n, expires_at = NULL,
            start_before = CASE WHEN t.cancel_requested_at IS NOT NULL THEN t.start_before END
        WHERE t.ctid = taken[1]
        RETURNING 'claimed', t.task_id, t.claim_token, t.task_type,
            CASE WHEN p_inline_bytes IS NULL OR pg_column_size(t.request) <= p_inline_bytes
                 THEN coalesce(t.request_raw::text, t.request::text) END,
            greatest(1, t.attempts), coalesce(t.max_attempts, fleet.max_attempts),
            CASE WHEN t.timeout_seconds > 0 AND t.timeout_seconds < 1e9 THEN t.timeout_seconds END, t.tenant, t.metadata,
            CASE WHEN t.run_at IS NOT NULL THEN last_checkpoint(t.task_id) END, t.traceparent,
            n - greatest(n - interval '1 year', least(n, greatest(t.created_at, t.run_at))), t.upstream, t.model,
            CASE WHEN t.run_at IS NOT NULL THEN last_paid(t.task_id) END
        INTO outcome, task_id, token, task_type, request, attempt, max_attempts, timeout_seconds, tenant, metadata, checkpoint,
             traceparent, waited, upstream, model, paid;
        IF p_inline_bytes < coalesce(octet_length(request), p_inline_bytes + 1) + coalesce(octet_length(metadata::text), 0)
                            + coalesce(octet_length(checkpoint::text), 0) THEN
            request := NULL;
            metadata := NULL;
            checkpoint := NULL;
        END IF;
        IF task_id IS NOT NULL THEN  -- else a trigger has prevented it
            RETURN NEXT;
        END IF;
    ELSE
        RETURN QUERY
        WITH won AS (
            UPDATE tasks t SET
                status = 'running',
                attempts = CASE WHEN g.again OR g.ahead THEN t.attempts ELSE least(t.attempts, 2147483646) + 1 END,
                claim_token = CASE WHEN g.again THEN t.claim_token ELSE nextval('claim_token_seq') END,
                worker_id = p_worker, started_at = CASE WHEN g.again THEN t.started_at ELSE n END,
                locked_until = n + p_lease, updated_at = n, expires_at = NULL,
                start_before = CASE WHEN t.cancel_requested_at IS NOT NULL THEN t.start_before END  -- it has started
            FROM unnest(again || taken) WITH ORDINALITY AS p (at, ord)
            CROSS JOIN LATERAL (SELECT p.ord <= coalesce(cardinality(again), 0), p.ord > coalesce(cardinality(again), 0) + counted) AS g (again, ahead)
            WHERE t.ctid = p.at
            RETURNING g.again, p.ord, t.task_id, t.claim_token, t.task_type, t.attempts, t.max_attempts, t.timeout_seconds, t.tenant,
                t.metadata, t.traceparent, t.upstream, t.model, t.created_at, t.run_at,
                CASE WHEN p_inline_bytes IS NULL OR pg_column_size(t.request) <= p_inline_bytes  -- else it is not even unpacked
                     THEN coalesce(t.request_raw::text, t.request::text) END AS body,
                CASE WHEN t.run_at IS NOT NULL OR g.again THEN last_checkpoint(t.task_id) END AS checkpoint,  -- it came back to the queue
                CASE WHEN t.run_at IS NOT NULL OR g.again THEN last_paid(t.task_id) END AS paid
        )
        SELECT CASE WHEN b.again THEN 'again' ELSE 'claimed' END, NULL::interval, b.task_id, b.claim_token, b.task_type,
               CASE WHEN b.inline THEN b.body END, greatest(1, b.attempts), coalesce(b.max_attempts, fleet.max_attempts),
               CASE WHEN b.timeout_seconds > 0 AND b.timeout_seconds < 1e9 THEN b.timeout_seconds END, b.tenant,
               CASE WHEN b.inline THEN b.metadata END, CASE WHEN b.inline THEN b.checkpoint END, b.traceparent,
               n - greatest(n - interval '1 year', least(n, greatest(b.created_at, b.run_at))), b.upstream, b.model, b.paid
        FROM (
            SELECT won.*, p_inline_bytes IS NULL OR p_inline_bytes >= sum(
                       coalesce(octet_length(won.body) + coalesce(octet_length(won.metadata::text), 0)
                                + coalesce(octet_length(won.checkpoint::text), 0), p_inline_bytes + 1)
                   ) OVER (ORDER BY won.ord ROWS UNBOUNDED PRECEDING) AS inline
            FROM won
        ) AS b
        ORDER BY b.ord;
    END IF;
    IF free > 0 THEN
        -- A few were woken for many tasks: they wake the others.
        IF got.left_over AND room > cardinality(taken) AND pg_sequence_last_value('waiting_listeners_until') > epoch_ms(n) THEN
            IF any_ready(types, l) THEN
                PERFORM wake_idle(types, 1);
            END IF;
        END IF;
    END IF;
    IF reserved IS NOT NULL THEN
        INSERT INTO token_reservations (token, task_id, groups, amounts)
        SELECT t.claim_token, g.task_id, g.groups, g.amounts FROM unnest(reserved) AS g JOIN tasks t ON t.task_id = g.task_id;
    END IF;
END $$;
