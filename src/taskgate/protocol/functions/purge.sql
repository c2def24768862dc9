-- Deletes up to p_batch final tasks whose time has come, with their attempts. One purger at a time; rows that
-- others hold are left for later, and no lock is held that claim waits for. Call again while it answers p_batch.
CREATE OR REPLACE FUNCTION purge(p_batch integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    n timestamptz := clock_timestamp();  -- a variable: the index cannot be entered by a volatile function
    old text[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(lock_key() + 2) THEN
        RETURN 0;
    END IF;
    SELECT array_agg(o.task_id) INTO old
    FROM (
        SELECT t.task_id FROM tasks t
        WHERE t.expires_at IS NOT NULL AND t.expires_at < n AND t.status || '' IN ('completed', 'failed')
        ORDER BY t.expires_at LIMIT p_batch FOR UPDATE SKIP LOCKED
    ) AS o;
    DELETE FROM tasks t WHERE t.task_id = ANY (old);
    DELETE FROM workers WHERE seen_at < n - interval '1 day';
    RETURN coalesce(cardinality(old), 0);
END $$;
