-- The flows of these types that may run now, from the directory: all, up to 256; of a larger directory (`more`) a window
-- of those that have tasks, beginning at p_start (ids are digests, so any window is a fair sample), highest priorities first. Flows of the groups
-- that are full are left out.
-- Answers an element a flow: its level: the priority, raised by how long its first task has waited; its turn: how long
-- ago it was served, in claims, for those that the ledger remembers; above that, at random, for the others.
CREATE OR REPLACE FUNCTION line_up(
    p_free integer, p_types text[], p_now timestamptz, p_ledger claim_ledger, p_start bigint,
    p_full_types text[], p_full_models text[], p_full_upstreams text[], p_full_tenants text[],
    OUT ids bigint[], OUT levels integer[], OUT types text[], OUT models text[], OUT upstreams text[], OUT tenants text[],
    OUT turns double precision[], OUT more boolean
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off AS $$
DECLARE
    most constant integer := 256;
    window_size constant integer := least(most, greatest(64, 2 * p_free));
BEGIN
    SELECT count(*) > most INTO more FROM (SELECT FROM flows f WHERE f.task_type = ANY (p_types) LIMIT most + 1) AS f;
    IF NOT more THEN
        SELECT array_agg(o.id), array_agg(least(9, o.priority + coalesce(p_ledger.ages[array_position(p_ledger.aged, o.id)], 0))),
               array_agg(o.task_type), array_agg(o.model), array_agg(o.upstream), array_agg(o.tenant),
               array_agg(coalesce(array_position(p_ledger.flows, o.id), 1000 + random()))
        INTO ids, levels, types, models, upstreams, tenants, turns
        FROM (
            SELECT DISTINCT f.id, f.priority, f.task_type, f.model, f.upstream, f.tenant FROM flows f
            WHERE f.task_type = ANY (p_types) AND NOT f.task_type = ANY (p_full_types) AND NOT f.model = ANY (p_full_models)
              AND NOT f.upstream = ANY (p_full_upstreams) AND NOT f.tenant = ANY (p_full_tenants)
        ) AS o;
        RETURN;
    END IF;
    SELECT array_agg(o.id), array_agg(least(9, o.priority + coalesce(p_ledger.ages[array_position(p_ledger.aged, o.id)], 0))),
           array_agg(o.task_type), array_agg(o.model), array_agg(o.upstream), array_agg(o.tenant),
           array_agg(coalesce(array_position(p_ledger.flows, o.id), 1000 + random()))
    INTO ids, levels, types, models, upstreams, tenants, turns
    FROM (SELECT DISTINCT o.* FROM (
        SELECT f.id, f.priority, f.task_type, f.model, f.upstream, f.tenant
        FROM (
            SELECT f.*
            FROM (
                SELECT f.* FROM unnest(p_ledger.aged) AS a (id) JOIN flows f ON f.id = a.id WHERE f.task_type = ANY (p_types)
                UNION ALL
                SELECT f.* FROM generate_series(9, 0, -1) AS p (priority) CROSS JOIN unnest(p_types) AS ty (name) CROSS JOIN LATERAL (
                    SELECT * FROM (
                        SELECT f.* FROM flows f
                        WHERE f.task_type = ty.name AND f.priority = p.priority AND f.id >= p_start ORDER BY f.id LIMIT 2000
                    ) AS f
                    UNION ALL
                    SELECT * FROM (
                        SELECT f.* FROM flows f
                        WHERE f.task_type = ty.name AND f.priority = p.priority AND f.id < p_start ORDER BY f.id LIMIT 2000
                    ) AS f
                ) AS f
            ) AS f
            WHERE NOT f.task_type = ANY (p_full_types) AND NOT f.model = ANY (p_full_models)
              AND NOT f.upstream = ANY (p_full_upstreams) AND NOT f.tenant = ANY (p_full_tenants)
            LIMIT 2000
        ) AS f
        -- As have_tasks has it; here the reading ends with the window. Most of a large directory may have run dry.
        CROSS JOIN LATERAL (SELECT array_position(p_ledger.flows, f.id)) AS m (place)
        LEFT JOIN LATERAL (
            SELECT t.seq FROM tasks t
            WHERE t.status = 'pending' AND t.run_at IS NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow = f.id
              AND t.seq >= coalesce(greatest(p_ledger.marks[m.place], -9223372036854775000) - 500, -9223372036854775808)
              AND (t.start_before >= p_now) IS NOT FALSE
            ORDER BY t.seq LIMIT 1
        ) AS ready ON true
        LEFT JOIN LATERAL (
            SELECT t.seq FROM tasks t
            WHERE ready.seq IS NULL
              AND t.status = 'pending' AND t.run_at IS NOT NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow = f.id
              AND t.run_at >= coalesce(p_ledger.due_marks[m.place] - interval '5 seconds', '-infinity') AND t.run_at <= p_now
              AND (t.start_before >= p_now) IS NOT FALSE
            ORDER BY t.run_at LIMIT 1
        ) AS due ON true
        WHERE ready.seq IS NOT NULL OR due.seq IS NOT NULL
        LIMIT window_size
    ) AS o) AS o;
END $$;
