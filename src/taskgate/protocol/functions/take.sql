-- Takes up to p_free tasks for claim: by priority, 9 first; within a priority those that fell due (retries,
-- delayed ones), then arrivals in order. A lane is a task type at a priority; each has its mark, below which
-- no ready task stands. The caller holds the claim lock.
-- The planner settings: its statistics of a queue are always stale, and one sequential scan here stops the fleet.
CREATE OR REPLACE FUNCTION take(
    p_worker text, p_free integer, p_types text[], p_now timestamptz, p_lease interval,
    INOUT ledger claim_ledger, OUT taken text[], OUT tokens bigint[]
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    -- A mark stays this many arrivals behind, for inserts that commit late.
    slack constant integer := 500;
    level record;
    got record;
    lane text;
    place integer;
BEGIN
    PERFORM expire(p_now);
    FOR level IN
        -- where there is anything at all: two index probes a lane
        SELECT p.priority, array_agg(ty.name) AS types, array_agg(m.mark) AS marks, bool_or(due.yes) AS any_due,
               bool_or(ready.yes) AS any_ready
        FROM generate_series(9, 0, -1) AS p (priority)
        CROSS JOIN unnest(p_types) AS ty (name)
        CROSS JOIN LATERAL (
            SELECT coalesce(ledger.marks[array_position(ledger.lanes, ty.name || '/' || p.priority)], -9223372036854775808)
        ) AS m (mark)
        LEFT JOIN LATERAL (
            SELECT true FROM tasks t
            WHERE t.status = 'pending' AND t.run_at IS NOT NULL AND t.task_type IS NOT NULL AND t.request IS NOT NULL
              AND t.task_type = ty.name AND t.priority = p.priority AND t.run_at <= p_now
            ORDER BY t.run_at LIMIT 1
        ) AS due (yes) ON true
        LEFT JOIN LATERAL (
            SELECT true FROM tasks t
            WHERE t.status = 'pending' AND t.run_at IS NULL AND t.task_type IS NOT NULL AND t.request IS NOT NULL
              AND t.task_type = ty.name AND t.priority = p.priority AND t.seq >= m.mark
            ORDER BY t.seq LIMIT 1
        ) AS ready (yes) ON true
        WHERE due.yes OR ready.yes
        GROUP BY p.priority
        ORDER BY p.priority DESC
    LOOP
        IF level.any_due THEN
            WITH next AS (
                SELECT x.task_id FROM unnest(level.types) AS ty (name)
                CROSS JOIN LATERAL (
                    SELECT t.task_id, t.run_at FROM tasks t
                    WHERE t.status = 'pending' AND t.run_at IS NOT NULL AND t.task_type IS NOT NULL AND t.request IS NOT NULL
                      AND t.task_type = ty.name AND t.priority = level.priority AND t.run_at <= p_now
                      AND (t.start_before >= p_now) IS NOT FALSE
                    ORDER BY t.run_at LIMIT p_free FOR UPDATE SKIP LOCKED
                ) AS x
                ORDER BY x.run_at LIMIT p_free
            ), won AS (
                UPDATE tasks t SET status = 'running', attempts = t.attempts + 1, claim_token = nextval('claim_token_seq'),
                    worker_id = p_worker, started_at = p_now, locked_until = p_now + p_lease, updated_at = p_now,
                    expires_at = NULL
                FROM next WHERE t.task_id = next.task_id
                RETURNING t.task_id, t.claim_token
            )
            SELECT array_agg(won.task_id) AS ids, array_agg(won.claim_token) AS tokens, count(*)::integer AS n
            INTO got FROM won;
            taken := taken || got.ids;
            tokens := tokens || got.tokens;
            p_free := p_free - got.n;
            EXIT WHEN p_free <= 0;
        END IF;
        IF level.any_ready THEN
            WITH next AS (
                SELECT x.task_id FROM unnest(level.types, level.marks) AS ty (name, mark)
                CROSS JOIN LATERAL (
                    SELECT t.task_id, t.seq FROM tasks t
                    WHERE t.status = 'pending' AND t.run_at IS NULL AND t.task_type IS NOT NULL AND t.request IS NOT NULL
                      AND t.task_type = ty.name AND t.priority = level.priority AND t.seq >= ty.mark
                      AND (t.start_before >= p_now) IS NOT FALSE
                    ORDER BY t.seq LIMIT p_free FOR UPDATE SKIP LOCKED
                ) AS x
                ORDER BY x.seq LIMIT p_free
            ), won AS (
                UPDATE tasks t SET status = 'running', attempts = t.attempts + 1, claim_token = nextval('claim_token_seq'),
                    worker_id = p_worker, started_at = p_now, locked_until = p_now + p_lease, updated_at = p_now,
                    expires_at = NULL
                FROM next WHERE t.task_id = next.task_id
                RETURNING t.task_id, t.claim_token, t.task_type, t.seq
            ), lanes AS (
                SELECT array_agg(f.task_type || '/' || level.priority) AS names, array_agg(f.seq - slack) AS seqs
                FROM (SELECT won.task_type, min(won.seq) AS seq FROM won GROUP BY won.task_type) AS f
            )
            SELECT array_agg(won.task_id) AS ids, array_agg(won.claim_token) AS tokens, count(*)::integer AS n,
                   (SELECT lanes.names FROM lanes) AS lanes, (SELECT lanes.seqs FROM lanes) AS seqs
            INTO got FROM won;
            taken := taken || got.ids;
            tokens := tokens || got.tokens;
            p_free := p_free - got.n;
            FOR i IN 1 .. coalesce(cardinality(got.lanes), 0) LOOP
                lane := got.lanes[i];
                place := array_position(ledger.lanes, lane);
                IF place IS NULL THEN
                    ledger.lanes := ledger.lanes || lane;
                    ledger.marks := ledger.marks || got.seqs[i];
                ELSE
                    ledger.marks[place] := greatest(ledger.marks[place], got.seqs[i]);
                END IF;
            END LOOP;
            EXIT WHEN p_free <= 0;
        END IF;
    END LOOP;
END $$;

-- How long until the next delayed task of these types falls due; NULL when there is none.
CREATE OR REPLACE FUNCTION next_due(p_types text[], p_now timestamptz) RETURNS interval
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT min(due.run_at) - p_now
    FROM generate_series(0, 9) AS p (priority)
    CROSS JOIN unnest(p_types) AS ty (name)
    CROSS JOIN LATERAL (
        SELECT t.run_at FROM tasks t
        WHERE t.status = 'pending' AND t.run_at IS NOT NULL AND t.task_type IS NOT NULL AND t.request IS NOT NULL
          AND t.task_type = ty.name AND t.priority = p.priority AND t.run_at > p_now
        ORDER BY t.run_at LIMIT 1
    ) AS due
$$;
