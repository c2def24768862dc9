-- enqueue in a transaction of its own, of which workers hear before it is on disk: a worker claims the tasks while the
-- caller still waits for that. No handler starts sooner than is safe, since a claim's own commit waits for all that came
-- before it in the log. When the call is over the tasks are on disk, also those that it found written (`exists`).
-- p_outcomes: what enqueue answers, in order, for ids that are given. Not inside a transaction of the caller's, nor in a
-- pipeline with other statements: it commits. A cancel may come behind that. (Made with the schema in it: a
-- procedure that commits cannot set its search_path.)
DO $do$
BEGIN
    EXECUTE format($procedure$
CREATE OR REPLACE PROCEDURE enqueue_and_flush(
    p_ids text[], p_types text[], p_requests text[], p_keep_order boolean[] DEFAULT NULL, p_options text[] DEFAULT NULL,
    p_tenant text DEFAULT '', p_traceparent text DEFAULT NULL, INOUT p_outcomes text[] DEFAULT NULL
)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    -- one task, in arrays that begin at 1 (none may be longer, and unnest would not care where they begin)
    IF p_ids[1] IS NOT NULL AND array_dims(p_ids) = '[1:1]' AND array_dims(p_types) = '[1:1]' AND array_dims(p_requests) = '[1:1]'
       AND coalesce(array_dims(p_keep_order), '[1:1]') = '[1:1]' AND coalesce(array_dims(p_options), '[1:1]') = '[1:1]' THEN
        p_outcomes := ARRAY[%1$I.enqueue_one(p_ids[1], p_types[1], p_requests[1], p_keep_order[1], p_options[1], p_tenant, p_traceparent)];
    ELSE
        SELECT coalesce(array_agg(e.outcome ORDER BY e.ord), '{}') INTO p_outcomes
        FROM %1$I.enqueue(p_ids, p_types, p_requests, p_keep_order, p_options, p_tenant, p_traceparent)
                 WITH ORDINALITY AS e (task_id, outcome, ord);
    END IF;
    COMMIT;
    PERFORM %1$I.flush();
END $$
    $procedure$, current_schema());
END $do$;
