-- Prolongs leases from now on, and marks the worker as seen. Answers for each task `done`, `cancel` (renewed,
-- but its cancellation was asked for: stop the call, then fail it) or `stale` (not yours any more: stop it).
CREATE OR REPLACE FUNCTION renew(p_worker text, p_ids text[], p_tokens bigint[], p_lease interval, p_draining boolean DEFAULT false)
RETURNS TABLE (task_id text, token bigint, outcome text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE n timestamptz;
BEGIN
    UPDATE workers w SET seen_at = clock_timestamp(), busy = cardinality(p_ids), draining = p_draining
    WHERE w.worker_id = p_worker;
    PERFORM FROM tasks t WHERE t.task_id = ANY (p_ids) ORDER BY t.task_id FOR UPDATE;
    n := clock_timestamp();  -- after the rows are ours
    RETURN QUERY
    WITH put AS (
        UPDATE tasks t SET locked_until = n + p_lease, updated_at = n
        FROM unnest(p_ids, p_tokens) AS g (id, token)
        WHERE t.task_id = g.id AND t.claim_token = g.token AND t.status || '' = 'running'
        RETURNING t.task_id, t.cancel_requested_at
    )
    SELECT g.id, g.token, CASE WHEN put.task_id IS NULL THEN 'stale'
                               WHEN put.cancel_requested_at IS NOT NULL THEN 'cancel' ELSE 'done' END
    FROM unnest(p_ids, p_tokens) AS g (id, token) LEFT JOIN put ON put.task_id = g.id;
END $$;
