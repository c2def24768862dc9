-- Writes tasks. One element a task in each array; NULL elements take the default. p_options elements are
-- JSON objects: priority, delay_seconds, run_at, start_within_seconds, timeout_seconds, max_attempts, metadata,
-- upstream (else the one for the request's model, see pick_upstream), and tenant and traceparent, which go before
-- the call's own.
-- p_keep_order: keep the request's text as well, since jsonb would reorder its keys.
-- Answers one row a task, in order: `done`, or `exists` when the id is taken (nothing is written for it). A commit behind
-- that is a promise too: it waits until whatever took the id is on disk, and replicated where commits wait for that.
CREATE OR REPLACE FUNCTION enqueue(
    p_ids text[], p_types text[], p_requests text[], p_keep_order boolean[] DEFAULT NULL,
    p_options text[] DEFAULT NULL, p_tenant text DEFAULT '', p_traceparent text DEFAULT NULL
) RETURNS TABLE (task_id text, outcome text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    ids text[] := p_ids;
    n timestamptz := clock_timestamp();
    any_upstreams boolean := EXISTS (SELECT FROM upstreams);
    written text[];
    came_to flows[];
BEGIN
    IF array_position(ids, NULL) IS NOT NULL THEN
        SELECT array_agg(coalesce(u.id, new_task_id()) ORDER BY u.ord) INTO ids
        FROM unnest(ids) WITH ORDINALITY AS u (id, ord);
    END IF;
    WITH given AS (
        SELECT g.*, coalesce(g.x ->> 'tenant', p_tenant) AS tenant, coalesce((g.x ->> 'priority')::smallint, 4) AS priority,
               request_model(g.request) AS model,
               coalesce((g.x ->> 'run_at')::timestamptz,
                        n + (g.x ->> 'delay_seconds')::double precision * interval '1 second') AS run_at
        FROM (
            SELECT u.id, u.ord, u.type, u.request::jsonb AS request, CASE WHEN u.keep_order THEN u.request::json END AS raw,
                   u.options::jsonb AS x, nextval('task_seq') AS seq
            FROM unnest(ids, p_types, p_requests, p_keep_order, p_options) WITH ORDINALITY
                     AS u (id, type, request, keep_order, options, ord)
        ) AS g
        OFFSET 0  -- each text is parsed once
    ), put AS (
        INSERT INTO tasks (task_id, status, task_type, request, request_raw, tenant, traceparent, created_at,
                           updated_at, priority, run_at, start_before, timeout_seconds, max_attempts, metadata, seq,
                           model, upstream, flow)
        SELECT g.id, 'pending', g.type, g.request, g.raw, g.tenant, coalesce(g.x ->> 'traceparent', p_traceparent), n, n,
               g.priority, g.run_at, coalesce(g.run_at, n) + (g.x ->> 'start_within_seconds')::double precision * interval '1 second',
               (g.x ->> 'timeout_seconds')::double precision, (g.x ->> 'max_attempts')::integer, g.x -> 'metadata', g.seq,
               g.model, w.upstream, flow_id(g.type, g.priority, g.tenant, w.upstream, g.model)
        FROM given g
        CROSS JOIN LATERAL (
            SELECT coalesce(g.x ->> 'upstream', CASE WHEN any_upstreams THEN pick_upstream(g.type, g.model) END, '') AS upstream OFFSET 0
        ) AS w
        ORDER BY g.id, g.ord  -- two batches that share ids must not wait for each other in a circle
        ON CONFLICT (task_id) DO NOTHING
        RETURNING tasks.task_id, tasks.flow, tasks.task_type, tasks.priority, tasks.tenant, tasks.upstream, tasks.model
    )
    SELECT (SELECT array_agg(put.task_id) FROM put),
           (SELECT array_agg(ROW (d.flow, d.task_type, d.priority, d.tenant, d.upstream, d.model, NULL)::flows)
            FROM (SELECT DISTINCT ON (put.flow) put.flow, put.task_type, put.priority, put.tenant, put.upstream, put.model FROM put
                  WHERE put.flow IS NOT NULL) AS d)
    INTO written, came_to;
    IF came_to IS NOT NULL THEN
        PERFORM announce_ready(came_to, cardinality(written));
    END IF;
    IF cardinality(written) = cardinality(ids) THEN
        RETURN QUERY SELECT u.id, 'done' FROM unnest(ids) WITH ORDINALITY AS u (id, ord) ORDER BY u.ord;
    ELSE
        PERFORM flush();
        RETURN QUERY SELECT u.id, CASE WHEN u.id = ANY (coalesce(written, '{}')) AND u.nth = 1 THEN 'done' ELSE 'exists' END
        FROM (SELECT i.id, i.ord, row_number() OVER (PARTITION BY i.id ORDER BY i.ord) AS nth
              FROM unnest(ids) WITH ORDINALITY AS i (id, ord)) AS u
        ORDER BY u.ord;
    END IF;
END $$;
