-- Prolongs leases from now on, and marks the worker as seen. Answers for each task `done`, `cancel` (renewed,
-- but its cancellation was asked for: stop the call, then fail it), `stale` (not yours any more: stop it) or
-- `busy` (not renewed, for somebody else holds the row: ask again soon; it must not cost the others their leases).
-- What was claimed ahead and still has no attempt gets it counted: nothing waits so long for its slot.
-- With nothing held it is a sign of life alone, for which no disk need be awaited.
CREATE OR REPLACE FUNCTION renew(p_worker text, p_ids text[], p_tokens bigint[], p_lease interval, p_draining boolean DEFAULT false)
RETURNS TABLE (task_id text, token bigint, outcome text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    n timestamptz;
    ours text[];
    alone constant boolean := pg_current_xact_id_if_assigned() IS NULL;  -- nothing was written in this transaction before
BEGIN
    UPDATE workers w SET seen_at = clock_timestamp(), busy = cardinality(p_ids), draining = p_draining
    WHERE w.worker_id = p_worker;
    IF p_draining THEN
        PERFORM announce_room();  -- it frees slots and claims no more
    END IF;
    IF cardinality(p_ids) = 0 THEN
        IF alone THEN
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
        RETURN;
    END IF;
    SELECT array_agg(l.task_id) INTO ours
    FROM (SELECT t.task_id FROM tasks t WHERE t.task_id = ANY (p_ids) AND t.claim_token = ANY (p_tokens)
          ORDER BY t.task_id FOR NO KEY UPDATE SKIP LOCKED) AS l;
    n := clock_timestamp();  -- after the rows are ours
    RETURN QUERY
    WITH put AS (
        UPDATE tasks t SET locked_until = n + p_lease, updated_at = n, attempts = greatest(1, t.attempts)
        FROM unnest(p_ids, p_tokens) AS g (id, token)
        WHERE t.task_id = g.id AND t.task_id = ANY (ours) AND t.claim_token = g.token AND t.status || '' = 'running'
        RETURNING t.task_id, t.claim_token, t.cancel_requested_at
    )
    SELECT g.id, g.token,
           CASE WHEN put.cancel_requested_at IS NOT NULL THEN 'cancel'
                WHEN put.task_id IS NOT NULL THEN 'done'
                WHEN g.id = ANY (ours) IS NOT TRUE AND EXISTS (
                    SELECT FROM tasks t WHERE t.task_id = g.id AND t.claim_token = g.token AND t.status || '' = 'running'
                ) THEN 'busy'
                ELSE 'stale' END
    FROM unnest(p_ids, p_tokens) AS g (id, token) LEFT JOIN put ON put.task_id = g.id AND put.claim_token = g.token;
END $$;
