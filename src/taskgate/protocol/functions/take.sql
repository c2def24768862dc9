-- Takes up to p_free tasks for claim: by priority, 9 first; within a priority those that fell due (retries,
-- delayed ones), then arrivals in order. A lane is a task type at a priority; each has two marks, below which
-- no ready task stands: a seq for arrivals, a time for tasks that fall due. The caller holds the claim lock.
-- The planner settings: its statistics of a queue are always stale, and one sequential scan here stops the fleet.
-- (No JIT: up to PostgreSQL 17 a plan that has no way around a node that is off looks so dear that it is compiled.)
CREATE OR REPLACE FUNCTION take(
    p_worker text, p_free integer, p_types text[], p_now timestamptz, p_lease interval,
    INOUT ledger claim_ledger, OUT taken text[], OUT tokens bigint[]
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    -- Reading begins so far before a mark, for writers that commit late.
    seq_slack constant integer := 500;
    due_slack constant interval := '5 seconds';
    level record;
    got text[];
BEGIN
    FOR level IN
        -- where there is anything at all: two index probes a lane
        SELECT p.priority, array_agg(ty.name) AS types, array_agg(m.seq) AS seqs, array_agg(m.due) AS dues,
               array_agg(ready.seq) AS first_seqs, array_agg(due.run_at) AS first_dues,
               bool_or(ready.seq IS NOT NULL) AS any_ready, bool_or(due.run_at IS NOT NULL) AS any_due
        FROM generate_series(9, 0, -1) AS p (priority)
        CROSS JOIN (SELECT DISTINCT name FROM unnest(p_types) AS name) AS ty
        CROSS JOIN LATERAL (SELECT array_position(ledger.lanes, ty.name || '/' || p.priority)) AS at (place)
        CROSS JOIN LATERAL (
            SELECT coalesce(greatest(ledger.marks[at.place], -9223372036854775000) - seq_slack, -9223372036854775808),
                   coalesce(ledger.due_marks[at.place] - due_slack, '-infinity')
        ) AS m (seq, due)
        LEFT JOIN LATERAL (
            SELECT t.run_at FROM tasks t
            WHERE t.status = 'pending' AND t.run_at IS NOT NULL AND num_nulls(t.task_type, t.request) = 0
              AND t.task_type = ty.name AND t.priority = p.priority AND t.run_at >= m.due AND t.run_at <= p_now
            ORDER BY t.run_at LIMIT 1
        ) AS due ON true
        LEFT JOIN LATERAL (
            SELECT t.seq FROM tasks t
            WHERE t.status = 'pending' AND t.run_at IS NULL AND num_nulls(t.task_type, t.request) = 0
              AND t.task_type = ty.name AND t.priority = p.priority AND t.seq >= m.seq
            ORDER BY t.seq LIMIT 1
        ) AS ready ON true
        WHERE due.run_at IS NOT NULL OR ready.seq IS NOT NULL
        GROUP BY p.priority
        ORDER BY p.priority DESC
    LOOP
        FOR i IN 1 .. cardinality(level.types) LOOP
            ledger := raise_mark(ledger, level.types[i] || '/' || level.priority, level.first_seqs[i], level.first_dues[i]);
        END LOOP;
        IF level.any_due THEN
            SELECT array_agg(x.task_id ORDER BY x.run_at, x.seq) INTO got
            FROM (
                SELECT d.task_id, d.run_at, d.seq FROM unnest(level.types, level.dues) AS ty (name, mark)
                CROSS JOIN LATERAL (
                    SELECT t.task_id, t.run_at, t.seq FROM tasks t
                    WHERE t.status = 'pending' AND t.run_at IS NOT NULL AND num_nulls(t.task_type, t.request) = 0
                      AND t.task_type = ty.name AND t.priority = level.priority
                      AND t.run_at >= ty.mark AND t.run_at <= p_now AND (t.start_before >= p_now) IS NOT FALSE
                    ORDER BY t.run_at, t.seq LIMIT p_free FOR UPDATE SKIP LOCKED
                ) AS d
                ORDER BY d.run_at, d.seq LIMIT p_free
            ) AS x;
            taken := taken || got;
            tokens := tokens || start_attempts(got, p_worker, p_now, p_lease);
            p_free := p_free - coalesce(cardinality(got), 0);
            EXIT WHEN p_free <= 0;
        END IF;
        IF level.any_ready THEN
            SELECT array_agg(x.task_id ORDER BY x.seq) INTO got
            FROM (
                SELECT r.task_id, r.seq FROM unnest(level.types, level.seqs) AS ty (name, mark)
                CROSS JOIN LATERAL (
                    SELECT t.task_id, t.seq FROM tasks t
                    WHERE t.status = 'pending' AND t.run_at IS NULL AND num_nulls(t.task_type, t.request) = 0
                      AND t.task_type = ty.name AND t.priority = level.priority
                      AND t.seq >= ty.mark AND (t.start_before >= p_now) IS NOT FALSE
                    ORDER BY t.seq LIMIT p_free FOR UPDATE SKIP LOCKED
                ) AS r
                ORDER BY r.seq LIMIT p_free
            ) AS x;
            taken := taken || got;
            tokens := tokens || start_attempts(got, p_worker, p_now, p_lease);
            p_free := p_free - coalesce(cardinality(got), 0);
            EXIT WHEN p_free <= 0;
        END IF;
    END LOOP;
END $$;

-- Makes tasks, whose rows the caller has locked, running ones under tokens of their own; answers the tokens.
CREATE OR REPLACE FUNCTION start_attempts(p_ids text[], p_worker text, p_now timestamptz, p_lease interval) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE tokens bigint[];
BEGIN
    WITH won AS (
        UPDATE tasks t SET status = 'running', attempts = least(t.attempts, 2147483646) + 1, claim_token = nextval('claim_token_seq'),
            worker_id = p_worker, started_at = p_now, locked_until = p_now + p_lease, updated_at = p_now,
            expires_at = NULL
        WHERE t.task_id = ANY (p_ids)
        RETURNING t.claim_token
    )
    SELECT array_agg(won.claim_token) INTO tokens FROM won;
    RETURN tokens;
END $$;

-- How long until the next delayed task of these types falls due; NULL when there is none.
CREATE OR REPLACE FUNCTION next_due(p_types text[], p_now timestamptz) RETURNS interval
LANGUAGE sql STABLE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
    SELECT min(least(due.run_at, p_now + interval '1 day')) - p_now  -- 'infinity' parks a task
    FROM generate_series(0, 9) AS p (priority)
    CROSS JOIN unnest(p_types) AS ty (name)
    CROSS JOIN LATERAL (
        SELECT t.run_at FROM tasks t
        WHERE t.status = 'pending' AND t.run_at IS NOT NULL AND num_nulls(t.task_type, t.request) = 0
          AND t.task_type = ty.name AND t.priority = p.priority AND t.run_at > p_now
        ORDER BY t.run_at LIMIT 1
    ) AS due
$$;
