-- Writes tasks. One element a task in each array; NULL elements take the default. p_options elements are
-- JSON objects: priority, delay_seconds, run_at, start_within_seconds, timeout_seconds, max_attempts, metadata,
-- and tenant and traceparent, which go before the call's own.
-- p_keep_order: keep the request's text as well, since jsonb would reorder its keys.
-- Answers one row a task, in order: `done`, or `exists` when the id is taken (nothing is written for it).
CREATE OR REPLACE FUNCTION enqueue(
    p_ids text[], p_types text[], p_requests text[], p_keep_order boolean[] DEFAULT NULL,
    p_options text[] DEFAULT NULL, p_tenant text DEFAULT '', p_traceparent text DEFAULT NULL
) RETURNS TABLE (task_id text, outcome text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    ids text[] := p_ids;
    n timestamptz := clock_timestamp();
    written text[];
BEGIN
    IF array_position(ids, NULL) IS NOT NULL THEN
        SELECT array_agg(coalesce(u.id, new_task_id()) ORDER BY u.ord) INTO ids
        FROM unnest(ids) WITH ORDINALITY AS u (id, ord);
    END IF;
    WITH put AS (
        INSERT INTO tasks (task_id, status, task_type, request, request_raw, tenant, traceparent, created_at,
                           updated_at, priority, run_at, start_before, timeout_seconds, max_attempts, metadata, seq)
        SELECT g.id, 'pending', g.type, g.request::jsonb,
               CASE WHEN g.keep_order THEN g.request::json END, coalesce(o.x ->> 'tenant', p_tenant),
               coalesce(o.x ->> 'traceparent', p_traceparent), n, n,
               coalesce((o.x ->> 'priority')::smallint, 4),
               coalesce((o.x ->> 'run_at')::timestamptz,
                        n + (o.x ->> 'delay_seconds')::double precision * interval '1 second'),
               coalesce((o.x ->> 'run_at')::timestamptz,
                        n + coalesce((o.x ->> 'delay_seconds')::double precision, 0) * interval '1 second')
                   + (o.x ->> 'start_within_seconds')::double precision * interval '1 second',
               (o.x ->> 'timeout_seconds')::double precision, (o.x ->> 'max_attempts')::integer, o.x -> 'metadata', g.seq
        FROM (
            SELECT u.*, nextval('task_seq') AS seq
            FROM unnest(ids, p_types, p_requests, p_keep_order, p_options) WITH ORDINALITY
                     AS u (id, type, request, keep_order, options, ord)
        ) AS g
        CROSS JOIN LATERAL (SELECT g.options::jsonb) AS o (x)
        ORDER BY g.id, g.ord  -- two batches that share ids must not wait for each other in a circle
        ON CONFLICT (task_id) DO NOTHING
        RETURNING tasks.task_id
    )
    SELECT array_agg(put.task_id) INTO written FROM put;
    IF cardinality(written) = cardinality(ids) THEN
        RETURN QUERY SELECT u.id, 'done' FROM unnest(ids) WITH ORDINALITY AS u (id, ord) ORDER BY u.ord;
    ELSE
        RETURN QUERY SELECT u.id, CASE WHEN u.id = ANY (coalesce(written, '{}')) AND u.nth = 1 THEN 'done' ELSE 'exists' END
        FROM (SELECT i.id, i.ord, row_number() OVER (PARTITION BY i.id ORDER BY i.ord) AS nth
              FROM unnest(ids) WITH ORDINALITY AS i (id, ord)) AS u
        ORDER BY u.ord;
    END IF;
END $$;
