-- enqueue for a single task whose id is given: the same row, by a statement without arrays, for an idle fleet waits for it.
-- A test holds the two to the same row (test_enqueue_one.py). Answers `done` or `exists`.
CREATE OR REPLACE FUNCTION enqueue_one(
    p_id text, p_type text, p_request text, p_keep_order boolean, p_options text, p_tenant text, p_traceparent text
) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    n timestamptz := clock_timestamp();
    body jsonb := p_request::jsonb;
    x jsonb := p_options::jsonb;
    of_tenant text := coalesce(x ->> 'tenant', p_tenant);
    of_model text := request_model(body);
    to_upstream text := x ->> 'upstream';
    level smallint := coalesce((x ->> 'priority')::smallint, 4);
    due timestamptz := coalesce((x ->> 'run_at')::timestamptz, n + (x ->> 'delay_seconds')::double precision * interval '1 second');
    came_to flows[];
BEGIN
    IF to_upstream IS NULL THEN
        to_upstream := coalesce(CASE WHEN EXISTS (SELECT FROM upstreams) THEN pick_upstream(p_type, of_model) END, '');
    END IF;
    INSERT INTO tasks (task_id, status, task_type, request, request_raw, tenant, traceparent, created_at,
                       updated_at, priority, run_at, start_before, timeout_seconds, max_attempts, metadata, seq,
                       model, upstream, flow)
    VALUES (p_id, 'pending', p_type, body, CASE WHEN p_keep_order THEN p_request::json END, of_tenant,
            coalesce(x ->> 'traceparent', p_traceparent), n, n,
            level, due, coalesce(due, n) + (x ->> 'start_within_seconds')::double precision * interval '1 second',
            (x ->> 'timeout_seconds')::double precision, (x ->> 'max_attempts')::integer, x -> 'metadata', nextval('task_seq'),
            of_model, to_upstream, flow_id(p_type, level, of_tenant, to_upstream, of_model))
    ON CONFLICT (task_id) DO NOTHING
    RETURNING ARRAY[ROW (flow, task_type, priority, tenant, upstream, model, NULL)::flows] INTO came_to;
    IF came_to IS NULL THEN
        PERFORM flush();
        RETURN 'exists';
    END IF;
    IF came_to[1].id IS NOT NULL THEN
        PERFORM announce_ready(came_to, 1);
    END IF;
    RETURN 'done';
END $$;
