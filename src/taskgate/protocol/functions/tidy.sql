-- The directory's part of a sweep, for up to 256 flows from a random one on: entries of flows with nothing pending go,
-- and doubles; pending flows without an entry get one; and how long the first task of each waits is noted.
-- The caller holds the claim lock. Nothing is deleted unless lock_key() + 1 is free just now, see announce_ready; it is
-- then held until the end of the transaction. Unless there are many, an entry stays for a minute, so that a flow that
-- runs dry and fills up again and again leaves no trail of dead rows.
CREATE OR REPLACE FUNCTION tidy_flows(p_now timestamptz, INOUT ledger claim_ledger)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    most constant integer := 256;
    start constant bigint := (random() * 1.8e19 - 9e18)::bigint;
    may_delete constant boolean := pg_try_advisory_xact_lock(lock_key() + 1);
    ageing constant double precision := (SELECT extract(epoch FROM s.ageing) FROM settings s);
    seen record;
BEGIN
    IF NOT EXISTS (SELECT FROM flows) AND NOT EXISTS (SELECT FROM first_flows(-9223372036854775808)) THEN  -- as of an idle fleet
        ledger.aged := '{}';
        ledger.ages := '{}';
        RETURN;
    END IF;
    -- in a statement after the lock: it sees every task whose writer found the entry
    SELECT array_agg(f.ctid) FILTER (WHERE f.nth > 1 OR (f.dry AND (f.entries > 100 OR f.since < p_now - interval '1 minute'))) AS gone,
           array_agg(f.id) AS ids,
           array_agg(f.id) FILTER (WHERE f.raise > 0 AND f.nth = 1) AS aged,
           array_agg(f.raise) FILTER (WHERE f.raise > 0 AND f.nth = 1) AS ages
    INTO seen
    FROM (
        SELECT e.ctid, e.id, e.since, ready.created_at IS NULL AND due.run_at IS NULL AS dry, count(*) OVER () AS entries,
               row_number() OVER (PARTITION BY e.id ORDER BY e.ctid) AS nth,
               CASE WHEN ageing > 0 THEN least(9, greatest(0, floor(extract(
                   epoch FROM p_now - greatest(least(ready.created_at, due.run_at), p_now - interval '1 year')) / ageing)))::smallint END AS raise
        FROM (
            SELECT * FROM (SELECT f.ctid, f.id, f.since FROM flows f WHERE f.id >= start ORDER BY f.id LIMIT most) AS f
            UNION ALL
            SELECT * FROM (SELECT f.ctid, f.id, f.since FROM flows f WHERE f.id < start ORDER BY f.id LIMIT most) AS f
            LIMIT most
        ) AS e
        LEFT JOIN LATERAL (
            SELECT t.created_at FROM tasks t
            WHERE t.status = 'pending' AND t.run_at IS NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow = e.id
            ORDER BY t.seq LIMIT 1
        ) AS ready ON true
        LEFT JOIN LATERAL (
            SELECT t.run_at FROM tasks t
            WHERE t.status = 'pending' AND t.run_at IS NOT NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow = e.id
            ORDER BY t.run_at LIMIT 1
        ) AS due ON true
    ) AS f;
    SELECT coalesce(array_agg(a.id), '{}'), coalesce(array_agg(a.raise), '{}') INTO ledger.aged, ledger.ages
    FROM (
        SELECT n.id, n.raise FROM unnest(seen.aged, seen.ages) AS n (id, raise)
        UNION ALL
        SELECT o.id, o.raise FROM unnest(ledger.aged, ledger.ages) AS o (id, raise)
        WHERE cardinality(seen.ids) = most AND NOT o.id = ANY (seen.ids)
        LIMIT 64
    ) AS a;
    IF may_delete AND seen.gone IS NOT NULL THEN
        DELETE FROM flows f WHERE f.ctid = ANY (seen.gone);
    END IF;
    -- Whose entry is missing: of a writer in another isolation level, or of one that was adopted while it wrote.
    INSERT INTO flows (id, task_type, priority, tenant, upstream, model, since)
    SELECT DISTINCT t.flow, t.task_type, t.priority, t.tenant, t.upstream, t.model, p_now
    FROM (SELECT first_flows(start) AS id UNION SELECT first_flows(-9223372036854775808)) AS f
    CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT t.* FROM tasks t
            WHERE t.status = 'pending' AND t.run_at IS NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow = f.id
            ORDER BY t.seq LIMIT 1
        ) AS t
        UNION ALL
        SELECT * FROM (
            SELECT t.* FROM tasks t
            WHERE t.status = 'pending' AND t.run_at IS NOT NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow = f.id
            ORDER BY t.run_at LIMIT 1
        ) AS t
        LIMIT 1
    ) AS t
    WHERE NOT EXISTS (SELECT FROM flows d WHERE d.id = f.id);
END $$;

-- Flows from p_from on that have pending tasks, whatever the directory says: 20 at most of arrivals, and of others.
CREATE OR REPLACE FUNCTION first_flows(p_from bigint) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE ready AS (
        SELECT (SELECT t.flow FROM tasks t
                WHERE t.status = 'pending' AND t.run_at IS NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow >= p_from
                ORDER BY t.flow LIMIT 1) AS id, 1 AS n
        UNION ALL
        SELECT (SELECT t.flow FROM tasks t
                WHERE t.status = 'pending' AND t.run_at IS NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow > r.id
                ORDER BY t.flow LIMIT 1), r.n + 1
        FROM ready r WHERE r.id IS NOT NULL AND r.n < 20
    ), due AS (
        SELECT (SELECT t.flow FROM tasks t
                WHERE t.status = 'pending' AND t.run_at IS NOT NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow >= p_from
                ORDER BY t.flow LIMIT 1) AS id, 1 AS n
        UNION ALL
        SELECT (SELECT t.flow FROM tasks t
                WHERE t.status = 'pending' AND t.run_at IS NOT NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow > d.id
                ORDER BY t.flow LIMIT 1), d.n + 1
        FROM due d WHERE d.id IS NOT NULL AND d.n < 20
    )
    SELECT r.id FROM ready r WHERE r.id IS NOT NULL
    UNION
    SELECT d.id FROM due d WHERE d.id IS NOT NULL;
END $$;
